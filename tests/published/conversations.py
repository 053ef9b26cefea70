"""Random conversations of benign text, as the dicts of transformers and as orl's messages.

Nothing here comes from the renderer: the ids of calls follow its documented form, nine letters and digits by number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from orl_core.messages import Message, TextBlock, ToolCall, ToolSpec

PIECES = (
    *(
        "",
        " ",
        "\n",
        "a",
        "The door is locked.",
        " It's late ",
        "\n\n",
        "x = 1\n",
        "- one\n- two",
        "{'a': 1}",
        "42",
        "3.5",
    ),
    *('{"a": [1, null]}', "é", "漢字", "😀", "Привет", "def f():\n    return 1\n", "true", "null", "a,b;c", "C:\\temp"),
    *(
        "100 %",
        "\t",
        "line\r\nline",
        "   ",
        "https://example.org/a?b=c&d",
        "# Title",
        "`code`",
        "...",
        "No.",
        '"quoted"',
    ),
    "o'clock",
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "string", "description": "A text."},
    {"type": "integer", "description": "A number."},
    {"type": "number", "description": "A number."},
    {"type": "boolean", "description": "Yes or no."},
    {"type": "array", "description": "Some texts.", "items": {"type": "string"}},
    {"type": "object", "description": "An object.", "properties": {"a": {"type": "integer", "description": "One."}}},
)
NAMES = ("where", "how_many", "depth", "is_open", "names", "options")


class Dialect(NamedTuple):
    """Demands of a template on calls: arguments as JSON text, and ids that say the call's name.

    `own_ids`: it numbers the calls of each action itself, and prints the ids of results as they are given.
    """

    as_text: bool
    named_ids: bool
    own_ids: bool = False


class Step(NamedTuple):
    """An action and what answers it."""

    action: Message
    answers: tuple[Message, ...]


class Played(NamedTuple):
    """A conversation: its tools, its opening, and the steps after it."""

    tools: tuple[ToolSpec, ...]
    opening: tuple[Message, ...]
    steps: tuple[Step, ...]


class Shape(NamedTuple):
    """Return what a template can express, as its certificate says."""

    user_turns: bool = True
    mixed: bool = True
    most_calls: int = 5
    system: bool = True
    text_before_calls: bool = True


def text(random: Random) -> str:
    """Return some benign text, often of several lines and with white space at its edges."""
    return "".join(random.choice(PIECES) for _ in range(random.randint(0, 4)))


def said(random: Random) -> str:
    """Return a text that is not blank, as a model says it."""
    return f"{text(random)}{random.choice(('Well.', 'I see', '漢字 ok', 'x'))}".strip()


def play(random: Random, shape: Shape) -> Played:
    """Return a random conversation within `shape`."""
    specs = tuple(_tool(random, number) for number in range(random.randint(1, 3)))
    opening: list[Message] = []
    if shape.system and random.random() < 0.5:
        opening.append(_message("system", said(random)))
    opening.append(_message("user", said(random)))
    for _ in range(random.choice((0, 0, 0, 1, 2)) if shape.user_turns else 0):
        step = _step(random, specs, shape, calls=random.random() < 0.7)
        opening += [step.action, *step.answers]
        if step.answers[-1].role == "tool":
            opening += [_message("assistant", said(random)), _message("user", said(random))]
    steps = [
        _step(random, specs, shape, calls=random.random() < 0.8 or not shape.user_turns)
        for _ in range(random.randint(1, 4))
    ]
    return Played(specs, tuple(opening), tuple(steps))


def _tool(random: Random, number: int) -> ToolSpec:
    names = random.sample(range(len(NAMES)), random.randint(1, 4))
    properties = {NAMES[name]: SCHEMAS[name] for name in names}
    schema = {"type": "object", "properties": properties, "required": [NAMES[names[0]]]}
    return ToolSpec(
        name=f"{random.choice(('look', 'ask', 'go_to'))}{number}",
        description=f"Do it. {said(random)}",
        parameters=schema,
    )


def _step(random: Random, specs: Sequence[ToolSpec], shape: Shape, *, calls: bool) -> Step:
    reasoning = said(random) if random.random() < 0.5 else ""
    if not calls:
        return Step(_message("assistant", said(random), reasoning), (_message("user", said(random)),))
    made = tuple(
        _call(random, random.choice(specs))
        for _ in range(random.choice((1, 1, 1, 2, 3, 5)[: shape.most_calls + 1 if shape.most_calls < 3 else 6]))
    )
    made = made[: shape.most_calls]
    spoken = said(random) if shape.text_before_calls and random.random() < 0.4 else ""
    answers = [Message(role="tool", name=call.name, content=(TextBlock(text=text(random)),)) for call in made]
    if shape.user_turns and shape.mixed and random.random() < 0.1:
        answers.append(_message("user", said(random)))
    return Step(_message("assistant", spoken, reasoning, made), tuple(answers))


def _message(role: Any, content: str, reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message(role=role, content=(TextBlock(text=content),), reasoning=reasoning, calls=calls)


def _call(random: Random, spec: ToolSpec) -> ToolCall:
    arguments: dict[str, Any] = {}
    for name, schema in spec.parameters["properties"].items():
        values: dict[str, Any] = {
            "string": text(random),
            "integer": random.choice((0, -3, 10**6)),
            "number": random.choice((0.5, -2.25, 7)),
            "boolean": random.random() < 0.5,
            "array": [said(random) for _ in range(random.randint(0, 2))],
            "object": {"a": random.randint(0, 9)},
        }
        arguments[name] = values[schema["type"]]
    return ToolCall(name=spec.name, arguments=arguments)


def as_dicts(messages: Sequence[Message], dialect: Dialect) -> list[dict[str, Any]]:
    """Return the messages as transformers' `apply_chat_template` takes them."""
    dicts: list[dict[str, Any]] = []
    made = answered = 0
    for message in messages:
        if message.role == "assistant" and dialect.own_ids:
            made = answered = 0
        one: dict[str, Any] = {
            "role": message.role,
            "content": "".join(block.text for block in message.content if isinstance(block, TextBlock)),
        }
        if message.role == "tool":
            one |= {"name": message.name, "tool_call_id": _id(dialect, answered, message.name)}
            answered += 1
        if message.reasoning:
            one["reasoning_content"] = message.reasoning
        calls: list[dict[str, Any]] = []
        for call in message.calls:
            assert isinstance(call, ToolCall)
            arguments = json.dumps(call.arguments, ensure_ascii=False) if dialect.as_text else call.arguments
            function = {"name": call.name, "arguments": arguments}
            calls.append({"id": _id(dialect, made, call.name), "type": "function", "function": function})
            made += 1
        dicts.append(one | ({"tool_calls": calls} if calls else {}))
    return dicts


def _id(dialect: Dialect, number: int, name: str) -> str:
    return f"functions.{name}:{number}" if dialect.named_ids else f"c{number:08d}"


def as_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools as transformers takes them."""
    return [
        {
            "type": "function",
            "function": {"name": one.name, "description": one.description, "parameters": one.parameters},
        }
        for one in specs
    ]
