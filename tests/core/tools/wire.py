"""Calls written in every wire format, as the models write them: what the tests of the parsers read back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct
from orl_core.messages import ToolCall, ToolSpec
from orl_core.tools import ToolFormat

from tests.kit.strategies import json_values


class Wire(Struct, frozen=True, kw_only=True):
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


def _named(key: str) -> Callable[[ToolCall, int], str]:
    return lambda call, _: f'{{"name": {_json(call.name)}, "{key}": {_json(call.arguments)}}}'


def _around(opening: str, inner: Callable[[ToolCall, int], str], closing: str) -> Callable[[ToolCall, int], str]:
    return lambda call, number: f"{opening}{inner(call, number)}{closing}"


def _tags(call: ToolCall, opening: str, parameter: str, value_end: str, closing: str) -> str:
    values = [f"{parameter % name}{_text(value)}{value_end}\n" for name, value in call.arguments.items()]
    return f"{opening}\n{''.join(values)}{closing}\n"


def _dsml(call: ToolCall, number: int) -> str:
    values: list[str] = []
    for name, value in call.arguments.items():
        tag = f'<｜DSML｜parameter name="{name}" string="{"true" if isinstance(value, str) else "false"}">'
        values.append(f"{tag}{_text(value)}</｜DSML｜parameter>\n")
    return f'<｜DSML｜invoke name="{call.name}">\n{"".join(values)}</｜DSML｜invoke>\n'


def _glm(line: str) -> Callable[[ToolCall, int], str]:
    def write(call: ToolCall, number: int) -> str:
        pairs = [
            f"<arg_key>{name}</arg_key>{line}<arg_value>{_text(value)}</arg_value>{line}"
            for name, value in call.arguments.items()
        ]
        return f"<tool_call>{call.name}{line}{''.join(pairs)}</tool_call>"

    return write


def _harmony(call: ToolCall, number: int) -> str:
    header = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
    return f"{header}{_json(call.arguments)}<|call|>"


def _python(call: ToolCall, number: int) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _qwen3_coder(call: ToolCall, number: int) -> str:
    return _tags(call, f"<function={call.name}>", "<parameter=%s>\n", "\n</parameter>", "</function>")


def _minimax(call: ToolCall, number: int) -> str:
    return _tags(call, f'<invoke name="{call.name}">', '<parameter name="%s">', "</parameter>", "</invoke>")


def _minimax_m3(call: ToolCall, number: int) -> str:
    """Objects and lists as JSON, which the parser takes too; how the template writes them has a test of its own."""
    values = "".join(f"{_NS}<{name}>{_text(value)}{_NS}</{name}>" for name, value in call.arguments.items())
    return f'{_NS}<invoke name="{call.name}">{values}{_NS}</invoke>\n'


def _hy3(suffix: str) -> Callable[[ToolCall, int], str]:
    def write(call: ToolCall, number: int) -> str:
        pairs = [
            f"<arg_key{suffix}>{name}</arg_key{suffix}>\n<arg_value{suffix}>{_text(value)}</arg_value{suffix}>\n"
            for name, value in call.arguments.items()
        ]
        return f"<tool_call{suffix}>{call.name}<tool_sep{suffix}>\n{''.join(pairs)}</tool_call{suffix}>\n"

    return write


def _lfm2_5(call: ToolCall, number: int) -> str:
    values = (f"'{value}'" if isinstance(value, str) else repr(value) for value in call.arguments.values())
    return f"{call.name}({', '.join(map('='.join, zip(call.arguments, values, strict=True)))})"


def _olmo3(call: ToolCall, number: int) -> str:
    return f"{call.name}({', '.join(f'{name}={_json(value)}' for name, value in call.arguments.items())})"


def _seed_oss(text: Callable[[Any], str]) -> Callable[[ToolCall, int], str]:
    def write(call: ToolCall, number: int) -> str:
        values = [f"<parameter={name}>{text(value)}</parameter>\n" for name, value in call.arguments.items()]
        return f"<seed:tool_call>\n<function={call.name}>\n{''.join(values)}</function>\n</seed:tool_call>"

    return write


def _kimi_k3(call: ToolCall, number: int) -> str:
    values: list[str] = []
    for name, value in call.arguments.items():
        header = f'<|open|>argument key="{name}" type="{_XTML.get(type(value), "null")}"<|sep|>'
        values.append(f"{header}{_text(value)}<|close|>argument<|sep|>")
    opening = f'<|open|>call tool="{call.name}" index="{number + 1}"<|sep|>'
    return f"{opening}{''.join(values)}<|close|>call<|sep|>"


_NS = "]<]minimax[>["
_XTML = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}


def _gemma4(call: ToolCall, number: int) -> str:
    return f"<|tool_call>call:{call.name}{_gemma4_value(call.arguments)}<tool_call|>"


def _gemma4_value(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            keys = [key if re.fullmatch(r"[\w-]+", key) else _gemma4_value(key) for key in value]
            return f"{{{','.join(f'{key}:{_gemma4_value(of)}' for key, of in zip(keys, value.values(), strict=True))}}}"
        case list():
            return f"[{','.join(map(_gemma4_value, value))}]"
        case _:
            return _json(value)


_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
WIRES = {
    "hermes": Wire(format="hermes", call=_around("<tool_call>\n", _named("arguments"), "\n</tool_call>"), between="\n"),
    "qwen3_coder": Wire(
        format="qwen3_coder", call=_around("<tool_call>\n", _qwen3_coder, "</tool_call>"), between="\n", hostile=False
    ),
    "qwen3_coder, one block": Wire(
        format="qwen3_coder", before="<tool_call>\n", call=_qwen3_coder, after="</tool_call>", hostile=False
    ),
    "glm45": Wire(format="glm45", call=_glm("\n"), between="\n", hostile=False),
    "glm45, compact": Wire(format="glm45", call=_glm(""), hostile=False),
    "llama3": Wire(format="llama3", call=_named("parameters"), between="; "),
    "llama3, tag": Wire(format="llama3", before="<|python_tag|>", call=_named("parameters"), between=";"),
    "mistral": Wire(format="mistral", before="[TOOL_CALLS] [", call=_named("arguments"), between=", ", after="]"),
    "mistral, compact": Wire(
        format="mistral", call=lambda call, _: f"[TOOL_CALLS]{call.name}[ARGS]{_json(call.arguments)}"
    ),
    "deepseek, V3": Wire(
        format="deepseek",
        before=_CALLS,
        call=lambda c, _: f"{_CALL}function{_SEP}{c.name}\n```json\n{_json(c.arguments)}\n```{_CALL_END}",
        between="\n",
        after=_CALLS_END,
    ),
    "deepseek, V3.1": Wire(
        format="deepseek",
        before=_CALLS,
        call=lambda c, _: f"{_CALL}{c.name}{_SEP}{_json(c.arguments)}{_CALL_END}",
        after=_CALLS_END,
    ),
    "deepseek, V3.2": Wire(
        format="deepseek",
        before="<｜DSML｜function_calls>\n",
        call=_dsml,
        after="</｜DSML｜function_calls>",
        hostile=False,
    ),
    "deepseek, V3.2 with JSON": Wire(
        format="deepseek",
        before="<｜DSML｜function_calls>\n",
        call=lambda c, _: f'<｜DSML｜invoke name="{c.name}">{_json(c.arguments)}</｜DSML｜invoke>',
        after="</｜DSML｜function_calls>",
    ),
    "deepseek, V4": Wire(
        format="deepseek",
        before="<｜DSML｜tool_calls>\n",
        call=lambda c, n: _dsml(c, n) if c.arguments else f'<｜DSML｜invoke name="{c.name}"/>\n',
        after="</｜DSML｜tool_calls>",
        hostile=False,
    ),
    "kimi_k2": Wire(
        format="kimi_k2",
        before="<|tool_calls_section_begin|>",
        call=lambda c, n: (
            f"<|tool_call_begin|>functions.{c.name}:{n}<|tool_call_argument_begin|>{_json(c.arguments)}<|tool_call_end|>"
        ),
        after="<|tool_calls_section_end|>",
    ),
    "gpt_oss": Wire(format="gpt_oss", call=_harmony, between="<|start|>assistant"),
    "minimax": Wire(
        format="minimax",
        before="<minimax:tool_call>\n",
        call=_minimax,
        after="</minimax:tool_call>",
        hostile=False,
    ),
    "pythonic": Wire(format="pythonic", before="[", call=_python, between=", ", after="]"),
    "pythonic, Llama 4": Wire(
        format="pythonic", before="<|python_start|>[", call=_python, between=", ", after="]<|python_end|>"
    ),
    "pythonic, LFM2": Wire(
        format="pythonic", before="<|tool_call_start|>[", call=_python, between=", ", after="]<|tool_call_end|>"
    ),
    "pythonic, LFM2 in JSON": Wire(
        format="pythonic",
        before="<|tool_call_start|>[",
        call=_named("arguments"),
        between=", ",
        after="]<|tool_call_end|>",
    ),
    "kimi_k3": Wire(
        format="kimi_k3",
        before="<|open|>tools<|sep|>",
        call=_kimi_k3,
        after="<|close|>tools<|sep|><|close|>message<|sep|>",
        hostile=False,
    ),
    "kimi_k3, JSON": Wire(
        format="kimi_k3",
        before="<|open|>tools<|sep|>",
        call=lambda c, n: (
            f'<|open|>call tool="{c.name}" index="{n + 1}"<|sep|><|open|>json type="object"<|sep|>'
            f"{_json(c.arguments)}<|close|>json<|sep|><|close|>call<|sep|>"
        ),
        after="<|close|>tools<|sep|>",
        hostile=False,
    ),
    "minimax_m3": Wire(
        format="minimax_m3",
        before=f"{_NS}<tool_call>\n",
        call=_minimax_m3,
        after=f"{_NS}</tool_call>",
        hostile=False,
    ),
    "minimax_m1": Wire(
        format="minimax_m1", before="<tool_calls>\n", call=_named("arguments"), between="\n", after="\n</tool_calls>"
    ),
    "minimax_m1, Hunyuan": Wire(
        format="minimax_m1", before="<tool_calls>[", call=_named("arguments"), between=", ", after="]</tool_calls>"
    ),
    "hy3": Wire(
        format="hy3",
        before="<tool_calls:opensource>\n",
        call=_hy3(":opensource"),
        after="</tool_calls:opensource>",
        hostile=False,
    ),
    "hy3_preview": Wire(
        format="hy3_preview", before="<tool_calls>\n", call=_hy3(""), after="</tool_calls>", hostile=False
    ),
    "json_array": Wire(format="json_array", before="[", call=_named("arguments"), between=", ", after="]"),
    "cohere": Wire(
        format="cohere",
        before="<|START_ACTION|>[\n    ",
        call=lambda c, n: f'{{"tool_call_id": "{n}", "tool_name": "{c.name}", "parameters": {_json(c.arguments)}}}',
        between=",\n    ",
        after="\n]<|END_ACTION|>",
    ),
    "gemma4": Wire(format="gemma4", call=_gemma4, hostile=False),
    "olmo3": Wire(format="olmo3", before="<function_calls>", call=_olmo3, between="\n", after="</function_calls>"),
    "seed_oss": Wire(format="seed_oss", call=_seed_oss(_text), between="\n", hostile=False),
    "seed_oss, as Python": Wire(format="seed_oss", call=_seed_oss(str), between="\n", hostile=False),
    "lfm2_5": Wire(
        format="lfm2_5",
        before="<|tool_call_start|>[",
        call=_lfm2_5,
        between=", ",
        after="]<|tool_call_end|>",
        hostile=False,
    ),
    "opened_array, Granite 3": Wire(
        format="opened_array", before="<|tool_call|>[", call=_named("arguments"), between=", ", after="]"
    ),
    "opened_array, Nemotron Nano v2": Wire(
        format="opened_array", before="<TOOLCALL>[", call=_named("arguments"), between=", ", after="]</TOOLCALL>"
    ),
}

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def tools_for(calls: Sequence[ToolCall]) -> tuple[ToolSpec, ...]:
    """Tools whose schemas state the types that the calls' arguments have."""
    return tuple(
        ToolSpec(
            name=call.name,
            parameters={
                "type": "object",
                "properties": {key: {"type": _KINDS.get(type(value), "null")} for key, value in call.arguments.items()},
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
