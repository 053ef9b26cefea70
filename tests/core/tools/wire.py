"""Calls written in every wire format, as the models write them: what the tests of the parsers read back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct, structs
from orl_core.messages import ParseFailure, ToolCall, ToolSpec
from orl_core.tools import ToolFormat

from tests.kit.strategies import json_values


class Wire(Struct, frozen=True):
    """One way to write calls: `call(call, number)` between `before` and `after`, joined by `between`.

    `hostile`: the format escapes, so that a string in the arguments may hold anything.
    """

    format: ToolFormat
    call: Callable[[ToolCall, int], str]
    before: str = ""
    between: str = ""
    after: str = ""
    hostile: bool = True

    def text(self, calls: Sequence[ToolCall]) -> str:
        return "".join(self.pieces(calls)) if calls else ""

    def pieces(self, calls: Sequence[ToolCall]) -> list[str]:
        """`before`, every call with what joins it to the one before, `after`."""
        written = [self.between * bool(number) + self.call(call, number) for number, call in enumerate(calls)]
        return [self.before, *written, self.after]

    def ends(self, calls: Sequence[ToolCall]) -> list[int]:
        """Return the places in the text at which each call ends."""
        return list(accumulate(map(len, self.pieces(calls))))[1:-1]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _written(form: str) -> Callable[[ToolCall, int], str]:
    """Write NAME, JSON and INDEX of a call into `form`."""
    return lambda call, number: (
        form.replace("NAME", call.name).replace("INDEX", str(number)).replace("JSON", _json(call.arguments))
    )


def _tags(
    opening: str, value: str, closing: str, spell: Callable[[Any], str] = _text
) -> Callable[[ToolCall, int], str]:
    """Write each argument as `value`, with its KEY, whether it is a STRING, and its TEXT."""

    def write(call: ToolCall, number: int) -> str:
        values = [
            value.replace("KEY", name)
            .replace("STRING", "true" if isinstance(of, str) else "false")
            .replace("TEXT", spell(of))
            for name, of in call.arguments.items()
        ]
        return f"{opening.replace('NAME', call.name)}{''.join(values)}{closing}"

    return write


def _python(spell: Callable[[Any], str]) -> Callable[[ToolCall, int], str]:
    return lambda call, _: (
        f"{call.name}({', '.join(f'{name}={spell(value)}' for name, value in call.arguments.items())})"
    )


def _v4(call: ToolCall, number: int) -> str:
    return _DSML(call, number) if call.arguments else f'<｜DSML｜invoke name="{call.name}"/>\n'


def _gemma4(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            keys = [key if re.fullmatch(r"[\w-]+", key) else _gemma4(key) for key in value]
            return f"{{{','.join(f'{key}:{_gemma4(of)}' for key, of in zip(keys, value.values(), strict=True))}}}"
        case list():
            return f"[{','.join(map(_gemma4, value))}]"
        case _:
            return _json(value)


_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
_ARGUMENTS, _PARAMETERS = '{"name": "NAME", "arguments": JSON}', '{"name": "NAME", "parameters": JSON}'
_FUNCTION = _tags("<function=NAME>\n", "<parameter=KEY>\nTEXT\n</parameter>\n", "</function>\n")
_SEED = ("<seed:tool_call>\n<function=NAME>\n", "<parameter=KEY>TEXT</parameter>\n", "</function>\n</seed:tool_call>")
_INVOKE = _tags('<invoke name="NAME">\n', '<parameter name="KEY">TEXT</parameter>\n', "</invoke>\n")
_DSML = _tags(
    '<｜DSML｜invoke name="NAME">\n',
    '<｜DSML｜parameter name="KEY" string="STRING">TEXT</｜DSML｜parameter>\n',
    "</｜DSML｜invoke>\n",
)
_LFM = ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")
WIRES = {
    "hermes": Wire("hermes", _written(f"<tool_call>\n{_ARGUMENTS}\n</tool_call>"), between="\n"),
    "qwen3_coder": Wire(
        "qwen3_coder", lambda c, n: f"<tool_call>\n{_FUNCTION(c, n)}</tool_call>", between="\n", hostile=False
    ),
    "qwen3_coder, one block": Wire("qwen3_coder", _FUNCTION, "<tool_call>\n", "", "</tool_call>", hostile=False),
    "glm45": Wire(
        "glm45",
        _tags("<tool_call>NAME\n", "<arg_key>KEY</arg_key>\n<arg_value>TEXT</arg_value>\n", "</tool_call>"),
        between="\n",
        hostile=False,
    ),
    "glm45, compact": Wire(
        "glm45",
        _tags("<tool_call>NAME", "<arg_key>KEY</arg_key><arg_value>TEXT</arg_value>", "</tool_call>"),
        hostile=False,
    ),
    "llama3": Wire("llama3", _written(_PARAMETERS), between="; "),
    "llama3, tag": Wire("llama3", _written(_PARAMETERS), "<|python_tag|>", ";"),
    "mistral": Wire("mistral", _written(_ARGUMENTS), "[TOOL_CALLS] [", ", ", "]"),
    "mistral, compact": Wire("mistral", _written("[TOOL_CALLS]NAME[ARGS]JSON")),
    "deepseek, V3": Wire(
        "deepseek",
        _written(f"{_CALL}function{_SEP}NAME\n```json\nJSON\n```{_CALL_END}"),
        _CALLS,
        "\n",
        _CALLS_END,
    ),
    "deepseek, V3.1": Wire("deepseek", _written(f"{_CALL}NAME{_SEP}JSON{_CALL_END}"), _CALLS, "", _CALLS_END),
    "deepseek, V3.2": Wire(
        "deepseek", _DSML, "<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>", hostile=False
    ),
    "deepseek, V3.2 with JSON": Wire(
        "deepseek",
        _written('<｜DSML｜invoke name="NAME">JSON</｜DSML｜invoke>'),
        "<｜DSML｜function_calls>\n",
        "",
        "</｜DSML｜function_calls>",
    ),
    "deepseek, V4": Wire("deepseek", _v4, "<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>", hostile=False),
    "kimi_k2": Wire(
        "kimi_k2",
        _written("<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>JSON<|tool_call_end|>"),
        "<|tool_calls_section_begin|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "gpt_oss": Wire(
        "gpt_oss",
        _written("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON<|call|>"),
        between="<|start|>assistant",
    ),
    "minimax": Wire("minimax", _INVOKE, "<minimax:tool_call>\n", "", "</minimax:tool_call>", hostile=False),
    "pythonic": Wire("pythonic", _python(repr), "[", ", ", "]"),
    "pythonic, Llama 4": Wire("pythonic", _python(repr), "<|python_start|>[", ", ", "]<|python_end|>"),
    "pythonic, LFM2": Wire("pythonic", _python(repr), *_LFM),
    "pythonic, LFM2 in JSON": Wire("pythonic", _written(_ARGUMENTS), *_LFM),
    "json_array": Wire("json_array", _written(_ARGUMENTS), "[", ", ", "]"),
    "cohere": Wire(
        "cohere",
        _written('{"tool_call_id": "INDEX", "tool_name": "NAME", "parameters": JSON}'),
        "<|START_ACTION|>[\n    ",
        ",\n    ",
        "\n]<|END_ACTION|>",
    ),
    "gemma4": Wire(
        "gemma4", lambda c, _: f"<|tool_call>call:{c.name}{_gemma4(c.arguments)}<tool_call|>", hostile=False
    ),
    "olmo3": Wire("olmo3", _python(_json), "<function_calls>", "\n", "</function_calls>"),
    "seed_oss": Wire("seed_oss", _tags(*_SEED), between="\n", hostile=False),
    "seed_oss, as Python": Wire("seed_oss", _tags(*_SEED, str), between="\n", hostile=False),
    "lfm2_5": Wire(
        "lfm2_5", _python(lambda value: f"'{value}'" if isinstance(value, str) else repr(value)), *_LFM, hostile=False
    ),
    "opened_array, Granite 3": Wire("opened_array", _written(_ARGUMENTS), "<|tool_call|>[", ", ", "]"),
    "opened_array, Nemotron Nano v2": Wire("opened_array", _written(_ARGUMENTS), "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
}

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def without_ids(calls: Sequence[ToolCall | ParseFailure]) -> tuple[ToolCall | ParseFailure, ...]:
    """The calls without the ids that some formats write."""
    return tuple(structs.replace(call, id="") for call in calls)


def tools_for(calls: Sequence[ToolCall]) -> tuple[ToolSpec, ...]:
    """Tools whose schemas state the types that the calls' arguments have, and require them."""
    return tuple(
        ToolSpec(
            name=call.name,
            parameters={
                "type": "object",
                "properties": {key: {"type": _KINDS.get(type(value), "null")} for key, value in call.arguments.items()},
                "required": sorted(call.arguments),
            },
        )
        for call in calls
    )


def calls_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[ToolCall]]:
    """Up to three calls of different tools, with names that every format can write."""
    names = st.sampled_from(("a", "say", "add_2", "Look-Up", "_x1", "name", "arguments"))
    keys = st.sampled_from(("x", "name", "_2", "Key", "arguments", "type"))
    call = st.builds(ToolCall, name=names, arguments=st.dictionaries(keys, values, max_size=3))
    return st.lists(call, min_size=1, max_size=3, unique_by=lambda call: call.name)


_quiet = st.text(st.characters(codec="utf-8", exclude_characters="<｜"), max_size=10)
quiet_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | _quiet,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_quiet, children, max_size=3),
    max_leaves=8,
)
any_calls = calls_of(json_values)
quiet_calls = calls_of(quiet_values)  # no delimiter of any format inside
