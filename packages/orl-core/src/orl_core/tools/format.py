"""Tools as a model reads them, calls as it writes them: the pieces that tool formats are made of.

Keys are in a fixed order, those of a schema in the environment's order: the same tools always give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from orl_core.errors import expect_each
from orl_core.messages import ToolCall, ToolSpec

Specs = list[dict[str, Any]]  # tools in the form of chat templates
Show = Callable[[Specs], str]
Write = Callable[[ToolCall], str]


def for_chat_template(tools: Sequence[ToolSpec]) -> Specs:
    """Return the tools as chat templates expect them: one `{"type": "function", "function": {…}}` each."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in expect_each(ToolSpec, "tools", tools)
    ]


def for_system_prompt(tools: Sequence[ToolSpec]) -> str:
    """Return the tools as text, one JSON object a line, in the form of the OpenReward cookbook."""
    return "\n".join(
        json_of({"name": tool.name, "arguments_schema": tool.parameters, "description": tool.description})
        for tool in expect_each(ToolSpec, "tools", tools)
    )


def json_of(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that keeps letters of all languages."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def text_of(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json_of(value)


def writer(call: str, argument: str = "", between: str = "", spell: Callable[[Any], str] = text_of) -> Write:
    """Return what writes a call as the text `call`, with %-fields.

    They are `name`, also as JSON (`name_json`), and all arguments as one value (`json`) or each as an `argument`, with
    the fields `key` and `value`, joined by `between` (`arguments`). `spell` writes a value.
    """

    def write(one: ToolCall) -> str:
        arguments = between.join(argument % {"key": key, "value": spell(of)} for key, of in one.arguments.items())
        whole = spell(one.arguments)
        return call % {"name": one.name, "name_json": json_of(one.name), "json": whole, "arguments": arguments}

    return write


OBJECT = '{"name": %(name_json)s, "arguments": %(json)s}'  # the call that most formats of JSON write


def lines(before: str, after: str, *, bare: bool = False, around: tuple[str, str] = ("", "")) -> Show:
    """Return what shows one JSON object a line; `bare` leaves out the wrapper of type `function`."""

    def show(specs: Specs) -> str:
        shown = (f"{around[0]}{json_of(spec['function'] if bare else spec)}{around[1]}\n" for spec in specs)
        return f"{before}{''.join(shown)}{after}"

    return show


def array(before: str, after: str, *, bare: bool = False) -> Show:
    """Return what shows one JSON array; `bare` as in `lines`."""
    return lambda specs: f"{before}{json_of([spec['function'] for spec in specs] if bare else specs)}{after}"


def paragraphs(specs: Specs) -> str:
    """Show one indented JSON object a paragraph."""
    return "\n\n".join(json_of(spec, indent=4) for spec in specs)


class Spelling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How models of a format write, and how their templates show tools.

    `families` are names of such models, as they begin. `examples` are words of a call by which a system prompt shows
    the format, one tuple for each way.
    """

    write: Write
    show: Show = lines("<tools>\n", "</tools>")
    families: tuple[str, ...] = ()
    examples: tuple[tuple[str, ...], ...] = ()

    def is_shown_in(self, prompt: str) -> bool:
        """Return whether a system prompt has an example of a call."""
        return any(all(word in prompt for word in words) for words in self.examples)
