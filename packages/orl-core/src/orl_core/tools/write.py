"""Write a call as a model of each tool format writes it: the inverse of `parse`, for data, prompts and tests.

The templates of the checkpoints are the source. Formats with tags cannot escape: a value that holds a closing tag would
be read as something else. So each text is parsed again before it is returned, and such a call is refused. The module
knows no token ids.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from orl_core.errors import RenderError
from orl_core.messages import Action, ToolCall, ToolSpec
from orl_core.tools import ToolFormat, parse, tool_format
from orl_core.tools.typed import JSON_TYPES, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SPACE = "]<]minimax[>["
_BARE_KEY = re.compile(r"[\w-]+")


def render_call(call: ToolCall, format: str = "hermes") -> str:  # noqa: A002
    """Return the text of one call, its delimiters included: `parse` of it gives the call back. `format` as for `parse`.

    In a format that carries arguments as texts (`qwen3_coder`, `glm45`, `minimax` and others), `parse` needs `tools`
    that state their types.

    Raises:
        RenderError: the format is unknown, or it cannot express this call. The message names the call and the format.
    """
    name = tool_format(format)
    text = _WRITERS[name](call)
    read = parse(text, name, tools=[ToolSpec(name=call.name, parameters=schema_of(call.arguments))])
    if read != Action(calls=(call,)):
        raise RenderError(
            f"the format `{name}` cannot express the call of `{call.name}`: an argument holds one of its delimiters, "
            "or a name or a value that it cannot write. Change the argument, or use a format that writes JSON"
        )
    return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _named(before: str, after: str, key: str = "arguments", name: str = "name") -> Callable[[ToolCall], str]:
    """Return the writer of one JSON object between `before` and `after`."""
    return lambda call: f"{before}{_json({name: call.name, key: call.arguments})}{after}"


def _headed(header: str, after: str) -> Callable[[ToolCall], str]:
    """Return the writer of a header that holds the name as `NAME`, and of the arguments as one JSON object."""
    return lambda call: f"{header.replace('NAME', call.name)}{_json(call.arguments)}{after}"


def _tags(
    before: str, after: str, key: str, value_end: str, spell: Callable[[Any], str] = _text
) -> Callable[[ToolCall], str]:
    """Return the writer of one tag a parameter; `before` holds the tool's name as `NAME`, `key` the parameter's."""

    def write(call: ToolCall) -> str:
        pairs = (
            f"{key.replace('NAME', name)}{spell(value)}{value_end.replace('NAME', name)}"
            for name, value in call.arguments.items()
        )
        return f"{before.replace('NAME', call.name)}{''.join(pairs)}{after}"

    return write


def _python_call(before: str, after: str, spell: Callable[[Any], str]) -> Callable[[ToolCall], str]:
    """Return the writer of a call in Python's form."""

    def write(call: ToolCall) -> str:
        return f"{before}{call.name}({', '.join(f'{k}={spell(v)}' for k, v in call.arguments.items())}){after}"

    return write


def _lfm(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _kimi_k3(call: ToolCall) -> str:
    def attribute(text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;")

    kinds: dict[type[object], str] = JSON_TYPES | {int: "number", float: "number"}
    values = (
        f'<|open|>argument key="{attribute(name)}" type="{kinds[type(value)]}"<|sep|>'
        f"{_text(value)}<|close|>argument<|sep|>"
        for name, value in call.arguments.items()
    )
    opening = f'<|open|>tools<|sep|><|open|>call tool="{attribute(call.name)}" index="1"<|sep|>'
    return f"{opening}{''.join(values)}<|close|>call<|sep|><|close|>tools<|sep|>"


def _gemma4(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            members = cast("dict[str, Any]", value).items()
            pairs = ((k if _BARE_KEY.fullmatch(k) else _gemma4(k), v) for k, v in members)
            return f"{{{','.join(f'{key}:{_gemma4(member)}' for key, member in pairs)}}}"
        case list():
            return f"[{','.join(map(_gemma4, cast('list[Any]', value)))}]"
        case _:
            return _json(value)


def _hy3(suffix: str) -> Callable[[ToolCall], str]:
    return _tags(
        f"<tool_calls{suffix}>\n<tool_call{suffix}>NAME<tool_sep{suffix}>\n",
        f"</tool_call{suffix}>\n</tool_calls{suffix}>",
        f"<arg_key{suffix}>NAME</arg_key{suffix}>\n<arg_value{suffix}>",
        f"</arg_value{suffix}>\n",
    )


_WRITERS: Mapping[ToolFormat, Callable[[ToolCall], str]] = {
    "hermes": _named("<tool_call>\n", "\n</tool_call>"),
    "qwen3_coder": _tags(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        "<parameter=NAME>\n",
        "\n</parameter>\n",
    ),
    "glm45": _tags("<tool_call>NAME\n", "</tool_call>", "<arg_key>NAME</arg_key>\n<arg_value>", "</arg_value>\n"),
    "llama3": _named("", "", key="parameters"),
    "mistral": _named("[TOOL_CALLS] [", "]"),
    "deepseek": _headed(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",  # noqa: RUF001
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    "kimi_k2": _headed(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "gpt_oss": _headed("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", "<|call|>"),
    "minimax": _tags(
        '<minimax:tool_call>\n<invoke name="NAME">\n',
        "</invoke>\n</minimax:tool_call>",
        '<parameter name="NAME">',
        "</parameter>\n",
    ),
    "pythonic": _python_call("[", "]", repr),
    "cohere": _named("<|START_ACTION|>[", "]<|END_ACTION|>", key="parameters", name="tool_name"),
    "gemma4": lambda call: f"<|tool_call>call:{call.name}{_gemma4(call.arguments)}<tool_call|>",
    "olmo3": _python_call("<function_calls>", "</function_calls>", _json),
    "seed_oss": _tags(
        "<seed:tool_call>\n<function=NAME>\n",
        "</function>\n</seed:tool_call>",
        "<parameter=NAME>",
        "</parameter>\n",
    ),
    "kimi_k3": _kimi_k3,
    "minimax_m3": _tags(
        f'{_SPACE}<tool_call>\n{_SPACE}<invoke name="NAME">',
        f"{_SPACE}</invoke>\n{_SPACE}</tool_call>",
        f"{_SPACE}<NAME>",
        f"{_SPACE}</NAME>",
    ),
    "minimax_m1": _named("<tool_calls>\n", "\n</tool_calls>"),
    "hy3": _hy3(":opensource"),
    "hy3_preview": _hy3(""),
    "json_array": _named("[", "]"),
    "lfm2_5": _python_call("<|tool_call_start|>[", "]<|tool_call_end|>", _lfm),
    "opened_array": _named("<TOOLCALL>[", "]</TOOLCALL>"),
}
