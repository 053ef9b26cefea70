"""Replies of models in every wire format that both sides know, from one seed: well-formed ones and hostile ones.

`tests.core.tools.wire` writes the calls, and the parsers' own tests read them back. What is hostile are the
values (delimiters in strings, code, other alphabets) and then the damage: each is named, so that a difference of
opinion can be told from a bug.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from msgspec import Struct, structs
from orl_core.messages import ToolCall, ToolSpec
from orl_core.tools import ToolFormat, delimiters

from tests.core.tools.wire import WIRES

# How a text is written, and who reads it: the wire's name there, the detector's name here.
READERS = (
    ("hermes", "hermes"),
    ("hermes", "qwen25"),
    ("qwen3_coder", "qwen3_coder"),
    ("qwen3_coder, one block", "qwen3_coder"),
    ("glm45", "glm45"),
    ("glm45, compact", "glm47"),
    ("deepseek, V3", "deepseekv3"),
    ("deepseek, V3.1", "deepseekv31"),
    ("deepseek, V3.2", "deepseekv32"),
    ("llama3", "llama3"),
    ("llama3, tag", "llama3"),
    ("mistral", "mistral"),
    ("mistral, compact", "mistral"),
    ("pythonic", "pythonic"),
    ("pythonic, Llama 4", "pythonic"),
    ("pythonic, LFM2", "lfm2"),
    ("kimi_k2", "kimi_k2"),
    ("gpt_oss", "gpt-oss"),
    ("minimax", "minimax-m2"),
)
TEXTS = (
    "find . -name '*.py' | xargs grep -n \"def main\"",
    "import os\n\nfor name in os.listdir('.'):\n    print(name)\n",
    "C:\\new\\table",
    "Привет, 世界 🌍",
    "a\tb",
    "1 < 2 && 3 > 2",
    "42",
    "null",
    "",
    "x",
)
TOOLS = tuple(
    ToolSpec(name=name, parameters={"type": "object", "properties": {key: {"type": kind} for key, kind in of.items()}})
    for name, of in {
        "run": {"command": "string", "timeout": "integer"},
        "edit_file": {"path": "string", "content": "string", "lines": "array"},
        "measure": {"scale": "number", "exact": "boolean"},
        "configure": {"options": "object", "level": "integer"},
        "now": {},
    }.items()
)


class Reply(Struct, frozen=True, kw_only=True):
    """One text with what it is: `damage` is empty if it is well-formed, and `calls` are then its calls."""

    wire: str
    format: ToolFormat
    detector: str
    text: str
    damage: str
    calls: tuple[ToolCall, ...]


def replies(count: int) -> Iterator[Reply]:
    """`count` well-formed replies and one of each damage to every one, for each reader."""
    for wire_name, detector in READERS:
        chance = random.Random(f"{wire_name} {detector}")
        wire = WIRES[wire_name]
        for _ in range(count):
            calls = _calls(chance, wire.format if wire.hostile else None)
            text = wire.text(calls)
            reply = Reply(
                wire=wire_name, format=wire.format, detector=detector, text=text, damage="", calls=tuple(calls)
            )
            yield reply
            for damage, do in DAMAGES.items():
                damaged = do(chance, calls, wire.text)
                if damaged != text:
                    yield structs.replace(reply, text=damaged, damage=damage)


def _calls(chance: random.Random, hostile: ToolFormat | None) -> list[ToolCall]:
    """Up to three calls with arguments of the types that the tools state; `hostile` strings hold its delimiters."""
    calls: list[ToolCall] = []
    for tool in chance.sample(TOOLS, chance.randint(1, 3)):
        properties: dict[str, dict[str, str]] = tool.parameters["properties"]
        arguments = {
            key: _value(chance, schema["type"], hostile) for key, schema in properties.items() if chance.random() < 0.85
        }
        calls.append(ToolCall(name=tool.name, arguments=arguments))
    return calls


def _value(chance: random.Random, kind: str, hostile: ToolFormat | None) -> object:
    match kind:
        case "string":
            text = chance.choice(TEXTS)
            return text + chance.choice(delimiters(hostile)) if hostile and chance.random() < 0.15 else text
        case "integer":
            return chance.choice((0, 1, 7, -3, 2**40))
        case "number":
            return chance.choice((0.5, -2.25, 1e-7, 3.0))
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [chance.randint(1, 9), chance.choice(TEXTS[-4:-1])]
        case _:
            return {"verbose": True, "name": chance.choice(TEXTS[:4]), "none": None}


Write = Callable[[list[ToolCall]], str]
DAMAGES: dict[str, Callable[[random.Random, list[ToolCall], Write], str]] = {
    "cut off": lambda chance, calls, write: write(calls)[: chance.randrange(1, len(write(calls)))],
    "a character lost": lambda chance, calls, write: _lost(chance, write(calls)),
    "a character doubled": lambda chance, calls, write: _doubled(chance, write(calls)),
    "an unknown tool": lambda chance, calls, write: write(
        [*calls[:-1], ToolCall(name="no_such_tool", arguments=calls[-1].arguments)]
    ),
    "prose before": lambda chance, calls, write: "Let me see.\n\n" + write(calls),
    "prose behind": lambda chance, calls, write: write(calls) + "\nThat is all.",
    "prose alone": lambda chance, calls, write: "I would call a tool, but {there} is [nothing] to <do>.",
    "single quotes": lambda chance, calls, write: write(calls).replace('"', "'"),
    "a comma too many": lambda chance, calls, write: write(calls).replace("}", ",}", 1),
    "arguments as a string": lambda chance, calls, write: _stringly(calls, write),
}


def _lost(chance: random.Random, text: str) -> str:
    place = chance.randrange(len(text))
    return text[:place] + text[place + 1 :]


def _doubled(chance: random.Random, text: str) -> str:
    place = chance.randrange(len(text))
    return text[:place] + text[place] + text[place:]


def _stringly(calls: list[ToolCall], write: Write) -> str:
    text = write(calls)
    for call in calls:
        written = json.dumps(call.arguments, ensure_ascii=False)
        text = text.replace(written, json.dumps(written, ensure_ascii=False), 1)
    return text
