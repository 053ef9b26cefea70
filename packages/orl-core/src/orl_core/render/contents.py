"""Find how a template changes the content of a message before it prints it, by probing.

A transform depends on the content alone. If no named one fits, the template renders every content, in the short dummy
of its plan: one more small render, and just as exact. A template that changes more than the content is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

from orl_core.errors import RenderError

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
    """A change of content: its name in the certificate, and the function."""

    name: str
    of: Callable[[str], str]


def probe(render: Callable[[str], str], before: str, after: str, *, prefix: str, suffix: str) -> Transform | None:
    """Return the transform of a template that prints a content between `before` and `after`; None where it prints more.

    `prefix` and `suffix` are the constant texts at its edges: a template may look whether the content has them already.
    """
    edges = {edge for text in (prefix, suffix) for edge in (text, text.strip(), *text.split("\n"))}
    rendered = {text: render(text) for edge in edges for text in (edge, edge + "a", "a" + edge)}
    rendered |= {text: render(text) for text in PROBES}
    for name, change in TRANSFORMS.items():
        if all(text == before + change(said) + after for said, text in rendered.items()):
            return Transform(name=name, of=change)
    of = asked(render, before, after)
    try:
        same = all(text == before + of(said) + after for said, text in rendered.items())
    except RenderError:
        return None
    return Transform(name="as the template prints it, asked each time", of=of) if same else None


def asked(render: Callable[[str], str], before: str, after: str) -> Callable[[str], str]:
    """Return a content as the template prints it; raise RenderError if it prints something else beside it."""

    def of(content: str) -> str:
        text = render(content)
        if len(text) < len(before) + len(after) or not (text.startswith(before) and text.endswith(after)):
            raise RenderError("the chat template changes more than the content that it prints")
        return text[len(before) : len(text) - len(after)]

    return of
