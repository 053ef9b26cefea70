"""The budget of one render of a chat template: steps, seconds, and the sizes of what the template computes.

Sizes are characters. A list counts `NODE` for each member plus the members' sizes, once for each occurrence, because a
list prints them so. All limits grow with the conversation. The module knows nothing of jinja2.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, ItemsView, Iterable, KeysView, Mapping, ValuesView
from itertools import chain
from string import Formatter
from types import GeneratorType
from typing import Any, cast

from orl_core.errors import RenderError

MOST_STEPS = 1_000_000  # operations of one render, and as many again as the conversation has characters
MOST_SECONDS = 10.0  # of one render, without those that its thread waits for others
MOST_SIZE = 1 << 20  # of one value, and `INPUT` times the conversation
INPUT = 16
NODE = 16  # the cost of a value besides its characters: about the memory of a list's member
GROWTH = 16  # an operation that multiplies sizes may make this times the largest value
TOTAL = 32  # and all that one render makes and prints may be this times the largest value
MOST_BITS = 1 << 16  # of a number
MOST_DEPTH = 64  # of lists in lists that a template makes; a message may be deeper

# Filters and methods by the growth of their result. The result of others is at most a few times their input.
_TIMES_NUMBER = frozenset({"expandtabs", "indent", "round", "tojson"})
_SQUARE = frozenset({"decode", "encode", "pprint", "strftime", "strftime_now", "striptags", "urlize", "wordwrap"})
MULTIPLYING = _TIMES_NUMBER | _SQUARE | {"%", "batch", "center", "format", "join", "replace", "slice", "trim"}

_WIDTH = re.compile(r"[%).][-+ #0]*(\d+)")  # of a directive of `%`: `%5d`, `%(key)5d`, `%.5d`
_COMPUTED_WIDTH = re.compile(r"%[-+ #0\d.]*\*")
_CONTAINERS: tuple[type[Any], ...] = (dict, list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
TEXTS = (str, bytes)


class Meter:
    """A budget. `given` is the conversation; `share` is the part of the steps and seconds that the render may take."""

    def __init__(self, given: Mapping[str, Any], share: float) -> None:
        self._known: dict[int, int] = {}
        size = sum(map(self._know, given.values()))
        self._room = MOST_SIZE + INPUT * size
        self._left = TOTAL * self._room
        self._steps = int((MOST_STEPS + size) * share)
        self._ends = time.thread_time() + MOST_SECONDS * share

    def tick(self, size: int = 0) -> None:
        """Take one step, and `size` from what may be made."""
        self._steps -= 1
        self._left -= size
        if self._steps < 0 or time.thread_time() > self._ends:
            raise RenderError("the chat template takes too many steps or too long on a conversation: it may never end")
        if self._left < 0:
            raise RenderError(f"the chat template makes more than {TOTAL * self._room:,} characters in all")

    def allow(self, size: int, times: int = 1) -> int:
        """Return `size` if a value may have `times` as much."""
        if size > self._room * times:
            raise RenderError(f"the chat template makes a value of more than {self._room * times:,} characters")
        return size

    def size(self, value: Any, depth: int = 0) -> int:
        """Return the size of a value that is allowed."""
        if isinstance(value, TEXTS):
            return self.allow(NODE + len(value))
        if (known := self._known.get(id(value))) is not None:
            return known
        if isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                raise RenderError(f"the chat template makes a number of more than {MOST_BITS:,} bits")
            return NODE
        if depth > MOST_DEPTH:
            raise RenderError(f"the chat template makes lists nested deeper than {MOST_DEPTH}")
        total = NODE
        for member in _members(value):
            total = self.allow(total + self.size(member, depth + 1))
        return total

    def made(self, value: Any) -> Any:
        """Return a value that the template computed, if it is allowed. A generator is measured while it is read."""
        if isinstance(value, GeneratorType):
            return self._read(cast("Iterable[Any]", value))
        size = self.size(value)
        # The members of a list are not copied.
        self.tick(size if isinstance(value, TEXTS) or size == NODE else NODE * (1 + len(value)))
        return value

    def before(self, name: str, subject: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse a filter or method of this name whose result on these measured values could be too large."""
        size = self.size(subject)
        self.tick(size if isinstance(subject, TEXTS) else 0)  # a list of its parts is a copy
        rest = [*args, *kwargs.values()]
        numbers = sum(abs(each) for each in rest if isinstance(each, int))
        others = sum(self.size(each) for each in rest if not isinstance(each, int))
        if name == "%":
            growth = _percent(subject, others)
        elif name in {"format", "format_map"}:
            growth = _format(subject, others)
        elif name == "replace":
            growth = _replace(subject, *args, **kwargs)
        elif name in _SQUARE:
            growth = (size + others) ** 2
        else:
            growth = size * (others + (numbers if name in _TIMES_NUMBER else 0)) + NODE * numbers
        self.allow(growth, GROWTH)

    def _know(self, value: Any) -> int:
        """Measure a value of the caller once: it lives as long as the render."""
        total = NODE + (len(value) if isinstance(value, TEXTS) else sum(map(self._know, _members(value))))
        if isinstance(value, _CONTAINERS):
            self._known[id(cast("object", value))] = total
        return total

    def _read(self, members: Iterable[Any]) -> Generator[Any]:
        total = 0
        for member in members:
            total = self.allow(total + self.size(member))
            self.tick(NODE)
            yield member


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        return chain(members, members.values())
    return cast("Iterable[Any]", value) if isinstance(value, _CONTAINERS) else ()


def _percent(text: Any, size: int) -> int:
    text = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    if _COMPUTED_WIDTH.search(text):
        raise RenderError(f"the chat template formats with a width that it computes: {text[:80]!r}")
    return text.count("%") * (size + max(map(int, _WIDTH.findall(text)), default=0))


def _format(text: Any, size: int) -> int:
    specs = [spec or "" for _, field, spec, _ in Formatter().parse(text) if field is not None]
    if any("{" in spec for spec in specs):
        raise RenderError(f"the chat template formats with a width that it computes: {text[:80]!r}")
    return len(specs) * (size + max(map(int, re.findall(r"\d+", " ".join(specs))), default=0))


def _replace(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    if isinstance(text, bytes) and isinstance(old, bytes):
        return text.count(old) * len(new)
    return str(text).count(str(old)) * len(str(new))
