"""Text and numbers from outside: made valid Unicode, made visible, reached in a tree of JSON types."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

DECIMAL_BITS = 1 << 13  # of a number that is written in decimal digits: Python refuses 4300 digits and more


def clean(text: str) -> str:
    """Return `text` as valid Unicode: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()  # ten times as fast as looking for surrogates
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def visible(text: str) -> str:
    """Return `text` with control, direction and surrogate characters made visible; newlines and tabs stay."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    if character < " ":
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs"):
        return f"\u27e8U+{ord(character):04X}\u27e9"
    return character


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the member of `known` that is most like `word`; empty if none is. The dashes of an option do not count."""
    import difflib

    bare = {member.lstrip("-"): member for member in known}
    return next((bare[name] for name in difflib.get_close_matches(word.lstrip("-"), list(bare), n=1)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the member of `known` that is most like `word`; empty if none is."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def check_system_prompt(template: str) -> None:
    """Refuse a `system_prompt_template` that `str.format(tools=...)` would not accept. `{{` and `}}` are braces."""
    rest = re.sub(r"\{\{|\}\}|\{tools\}", lambda part: "-" * len(part[0]), template)
    if brace := re.search("[{}]", rest):
        begin = template.rfind("\n", 0, brace.start()) + 1
        line, text = template.count("\n", 0, begin) + 1, template[begin:].partition("\n")[0]
        where = f"line {line}, column {brace.start() - begin + 1}, {text[:80]!r}"
        raise ValueError(
            f"`system_prompt_template`, {where}: only {{tools}} is filled in; write {{{{ and }}}} for braces"
        )
    if "{tools}" not in template.replace("{{", ""):
        raise ValueError("`system_prompt_template` has no {tools}: the model would not know its tools")


def is_template(text: str) -> bool:
    """Return whether this is the text of a chat template, not its path."""
    return "{{" in text or "{%" in text


def plain(value: object) -> Any:
    """Return `value` as plain JSON types; what has no JSON form becomes its `repr`."""
    return msgspec.to_builtins(value, enc_hook=repr, str_keys=True)


def leaves_in(tree: object) -> Iterator[tuple[str, str]]:
    """Yield every string in `tree`, of plain JSON types, with its path; a key's path is empty, an index is left out.

    A number is yielded as its text: it may spell what a string spells. It does not recurse, however deep the tree is.
    """
    waiting = [("", tree)]
    while waiting:
        path, member = waiting.pop()
        if (text := _text_of(member)) is not None:
            yield path, text
        elif isinstance(member, Mapping):
            for key, value in reversed([*cast("Mapping[object, object]", member).items()]):
                waiting += [(f"{path}.{key}", value), ("", key)]
        elif isinstance(member, list | tuple):
            waiting += [(path, each) for each in reversed(cast("list[object]", member))]


def map_strings(tree: Any, change: Callable[[str], str], *, numbers: bool = False) -> Any:
    """Return `tree`, of plain JSON types, with every string changed, keys too. It does not recurse.

    With `numbers`, a number whose text changes becomes a string, and the order is that of `leaves_in`.
    """

    def changed(member: object) -> object:
        text = _text_of(member) if numbers else member
        if not isinstance(text, str):
            return member
        return member if (new := change(text)) == text else new

    root: list[Any] = [None]
    waiting: list[tuple[Any, Any, Any]] = [(root, 0, tree)]  # a copy, the key or index in it, and the member to copy
    while waiting:
        holder, key, member = waiting.pop()
        if isinstance(holder, dict):
            key = changed(key)
        if isinstance(member, Mapping):
            items = [*cast("Mapping[Any, Any]", member).items()]
            holder[key] = copy = {}
            waiting += [(copy, name, value) for name, value in reversed(items)]
        elif isinstance(member, list | tuple):
            members = cast("list[Any]", member)
            holder[key] = copy = [None] * len(members)
            waiting += [(copy, index, members[index]) for index in range(len(members) - 1, -1, -1)]
        else:
            holder[key] = changed(member)
    return root[0]


def _text_of(member: object) -> str | None:
    """Return a string as it is and a number as its digits; None for all else.

    A number that is too long for decimal digits is given in hexadecimal ones, and a whole float without its point.
    """
    if isinstance(member, str):
        return member
    if isinstance(member, bool) or not isinstance(member, int | float):
        return None
    number = int(member) if isinstance(member, float) and member.is_integer() else member
    if isinstance(number, int) and number.bit_length() > DECIMAL_BITS:
        return hex(number)
    return str(number)


def non_finite(tree: object, where: str) -> str:
    """Return the path of the first number in `tree` that is not finite or exceeds 64 bits, or an empty string.

    `where` is the path of `tree`.
    """
    if isinstance(tree, float):
        return "" if math.isfinite(tree) else where
    if isinstance(tree, int):
        return "" if -(2**63) <= tree < 2**64 else where
    if isinstance(tree, dict):
        for key, value in cast("dict[object, object]", tree).items():
            if path := non_finite(key, where) or non_finite(value, f"{where}.{key}"):
                return path
    elif isinstance(tree, list):
        for index, value in enumerate(cast("list[object]", tree)):
            if path := non_finite(value, f"{where}[{index}]"):
                return path
    return ""
