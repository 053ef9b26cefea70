"""What a template does to the content of a message before it prints it, found by probing.

A transform is a function of the content alone. What depends on anything else is not supported and refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TRANSFORMS: Mapping[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "stripped": str.strip,
    "left-stripped": str.lstrip,
    "right-stripped": str.rstrip,
    "a JSON string": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],  # its quotes are constant text
}
PROBES = (
    *("", " ", "a", " a", "a ", "\na\n", "\t a\u00a0 ", "a\r\nb", "a\n\n\nb", "é 漢 😀", "<b>&amp;</b>"),
    *('"q"', "{}", '{"a": 1}', "[1, 2]", "\\n \\", "True", "null", "123", "Zqa", "{{ x }} {% y %}"),
)


class Transform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a content: a name for the certificate, and the function."""

    name: str
    of: Callable[[str], str]


def probe(render: Callable[[str], str], before: str, after: str, *, prefix: str, suffix: str) -> Transform | None:
    """The transform of a template that prints a content between `before` and `after`; None where none fits.

    `prefix` and `suffix` are the constant texts at its edges: a template may look whether the content has them already.
    """
    edges = (prefix, prefix + "a", suffix, "a" + suffix)
    rendered = {text: render(text) for text in (*PROBES, *edges)}
    for name, change in TRANSFORMS.items():
        if all(text == before + change(said) + after for said, text in rendered.items()):
            return Transform(name=name, of=change)
    return None
