"""Text from outside, whatever it holds: made valid Unicode, and reached wherever it stands in a tree of JSON types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec


def clean(text: str) -> str:
    """`text` as valid Unicode: a lone surrogate, which neither JSON nor a tokenizer can hold, becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value: object) -> Any:
    """`value` as plain JSON types; what has no JSON form becomes its `repr`."""
    return msgspec.to_builtins(value, enc_hook=repr, str_keys=True)


def strings_in(tree: object) -> Iterator[str]:
    """Every string in `tree`, of plain JSON types, keys too."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, value in cast("Mapping[object, object]", tree).items():
            yield from strings_in(key)
            yield from strings_in(value)
    elif isinstance(tree, list | tuple):
        for member in cast("list[object]", tree):
            yield from strings_in(member)


def map_strings(tree: Any, change: Callable[[str], str]) -> Any:
    """`tree`, of plain JSON types, with every string changed, keys too."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, Any]", tree).items()
        return {map_strings(key, change): map_strings(value, change) for key, value in items}
    if isinstance(tree, list | tuple):
        return [map_strings(member, change) for member in cast("list[Any]", tree)]
    return tree
