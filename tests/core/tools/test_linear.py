"""Every parser is linear: twice the text, twice the work. Work is counted, not timed.

Counted are the calls of functions, ours and the interpreter's, and the characters that are copied out of the text.
"""

from __future__ import annotations

from cProfile import Profile
from typing import SupportsIndex

import pytest
from orl_core.messages import ToolCall, ToolSpec
from orl_core.tools import TOOL_FORMATS, Marked, ToolFormat, parse, wire_format
from orl_core.tools.scan import mark

from tests.core.tools.wire import WIRES

TOOLS = (ToolSpec(name="a", parameters={"type": "object", "properties": {"x": {"type": "integer"}}}),)


class Counted(str):
    """A text that counts the characters that are copied out of it."""

    copied = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        found = super().__getitem__(key)
        self.copied += len(found)
        return found


def copied(text: str, tool_format: ToolFormat) -> int:
    """Characters copied while `text` is parsed."""
    counted = Counted(text)
    form = wire_format(tool_format)
    form.read(Marked(text=counted, marks=mark(text, form.delimiters).marks), TOOLS, reasoning_opened=False)
    return counted.copied


def called(text: str, tool_format: ToolFormat) -> int:
    """Calls made while `text` is parsed."""
    marked = mark(text, wire_format(tool_format).delimiters)
    with Profile() as profile:
        wire_format(tool_format).read(marked, TOOLS, reasoning_opened=False)
    return sum(entry.callcount for entry in profile.getstats())


def units(tool_format: ToolFormat) -> list[str]:
    texts = wire_format(tool_format).delimiters
    rests = ("", '{"a": "', "[a(x='", '"a">', '{"a": 1}', "a", " \n")
    wires = [wire.text([ToolCall(name="a")]) for wire in WIRES.values() if wire.format == tool_format]
    unopened = [wire.replace(text, "") for wire in wires for text in texts if text in wire]
    units = [*(text + rest for text in texts for rest in rests), "".join(texts), "".join(texts[::-1])]
    return [*units, *wires, *unopened, *(f"{wire} x" for wire in unopened)]


@pytest.mark.parametrize(
    "every", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.runs)]
)
@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_twice_the_text_is_twice_the_work(tool_format: ToolFormat, every: bool) -> None:
    """Each unit alone, and behind each delimiter: each delimiter, or `every` unit."""
    texts = wire_format(tool_format).delimiters
    for unit in units(tool_format):
        for before in ("", *(texts if every or unit in texts else ())):
            once, twice = (called(before + unit * size, tool_format) for size in (24, 48))
            assert twice <= 2.3 * once + 200, (before, unit)
        once, twice = (copied(unit * size, tool_format) for size in (100, 200))
        assert twice <= 2.3 * once + 500, unit


def test_negative_control_looking_back_is_seen() -> None:
    """A parser that copied the rest of the text at every mark would be found."""

    def copies(size: int) -> int:
        text = Counted("<think>" * size)
        for found in mark(text, ("<think>",)).marks:
            text[found.start :]
        return text.copied

    assert copies(80) > 2.3 * copies(40) + 500


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_long_turn_of_nothing_but_delimiters_is_read(tool_format: ToolFormat) -> None:
    """A regular expression that looks back would take longer than the limit of a test."""
    texts = wire_format(tool_format).delimiters
    for unit in ("".join(texts), texts[0], texts[0] + '{"a": "', texts[-1] + "[a(x='"):
        parse(unit * 1_000, tool_format, tools=TOOLS)
