"""Text from outside, whatever it holds: made valid Unicode, made visible, reached in a tree of JSON types."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from string import Formatter
from typing import Any, cast

import msgspec

DECIMAL_BITS = 1 << 13  # of a number that is written in decimal digits: Python refuses 4300 digits and more


def clean(text: str) -> str:
    """Return `text` as valid Unicode: a lone surrogate, which neither JSON nor a tokenizer can hold, becomes U+FFFD."""
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
    """Refuse a `system_prompt_template` that `str.format(tools=...)` would not accept. `{{` and `}}` are braces.

    Raises:
        ValueError: it is no format, or does not hold `{tools}` alone.
    """
    try:
        names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as exc:
        raise ValueError(f"`system_prompt_template`: {exc}; write {{{{ and }}}} for braces") from exc
    if names - {"tools"}:
        raise ValueError(f"`system_prompt_template` has {{{min(names - {'tools'})}}}: only {{tools}} is filled in")
    if "tools" not in names:
        raise ValueError("`system_prompt_template` has no {tools}: the model would not know its tools")


def plain(value: object) -> Any:
    """Return `value` as plain JSON types; what has no JSON form becomes its `repr`."""
    return msgspec.to_builtins(value, enc_hook=repr, str_keys=True)


def leaves_in(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string in `tree`, of plain JSON types, with its path; a key's path is empty, an index is left out.

    A number is yielded as its text: it may spell what a string spells.
    """
    if (text := _text_of(tree)) is not None:
        yield path, text
    elif isinstance(tree, Mapping):
        for key, value in cast("Mapping[object, object]", tree).items():
            yield from leaves_in(key)
            yield from leaves_in(value, f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for member in cast("list[object]", tree):
            yield from leaves_in(member, path)


def map_strings(tree: Any, change: Callable[[str], str], *, numbers: bool = False) -> Any:
    """Return `tree`, of plain JSON types, with every string changed, keys too.

    With `numbers`, a number whose text changes becomes a string, and the order is that of `leaves_in`.
    """
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, Any]", tree).items()
        return {map_strings(k, change, numbers=numbers): map_strings(v, change, numbers=numbers) for k, v in items}
    if isinstance(tree, list | tuple):
        return [map_strings(member, change, numbers=numbers) for member in cast("list[Any]", tree)]
    text = _text_of(tree) if numbers else tree
    if not isinstance(text, str):
        return tree
    return tree if (new := change(text)) == text else new


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
