"""Write a call as a model of each tool format writes it: the inverse of `parse`, for data, prompts and tests.

The templates of the checkpoints are the source. Formats with tags cannot escape: a value that holds a closing tag would
be read as something else. So each text is parsed again before it is returned, and such a call is refused. The module
knows no token ids.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import structs

from orl_core.errors import RenderError, expect
from orl_core.messages import Action, ToolCall, ToolSpec
from orl_core.tools import ToolFormat, parse, tool_format
from orl_core.tools.typed import JSON_TYPES, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SPACE = "]<]minimax[>["
_BARE_KEY = re.compile(r"[\w-]+")


def render_call(call: ToolCall, format: str = "hermes") -> str:  # noqa: A002
    """Return the text of one call, its delimiters included: `parse` of it gives the call back, but for its id.

    `format` is as for `parse`.

    In a format that carries arguments as texts (`qwen3_coder`, `glm45`, `minimax` and others), `parse` needs `tools`
    that state their types.

    Raises:
        RenderError: the format is unknown, or it cannot express this call. The message names the call and the format.
    """
    expect(ToolCall, "call", call)
    name = tool_format(format)
    text = _FORMS[name].text(call)
    read = parse(text, name, tools=[ToolSpec(name=call.name, parameters=schema_of(call.arguments))])
    if [structs.replace(one, id=call.id) for one in read.calls] != [call] or read != Action(calls=read.calls):
        raise RenderError(
            f"the format `{name}` cannot express the call of `{call.name}`: an argument holds one of its delimiters, "
            "or a name or a value that it cannot write. Change the argument, or use a format that writes JSON"
        )
    return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _lfm(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)


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


class _Form(NamedTuple):
    """The text of a call, in %-fields: its name, also as JSON, and its arguments, as JSON or one by one.

    `argument` is the text of one argument, `between` joins them, `spell` writes its value, and in `json` the whole.
    """

    call: str
    argument: str = ""
    between: str = ""
    spell: Callable[[Any], str] = _text

    def text(self, call: ToolCall) -> str:
        arguments = self.between.join(
            self.argument
            % {"key": key, "quoted": _attribute(key), "type": _TYPES[type(value)], "value": self.spell(value)}
            for key, value in call.arguments.items()
        )
        fields = {"name": call.name, "quoted": _attribute(call.name), "arguments": arguments}
        return self.call % {**fields, "json": self.spell(call.arguments), "name_json": _json(call.name)}


_TYPES: dict[type[object], str] = JSON_TYPES | {int: "number", float: "number"}  # as Kimi K3 names them
_OBJECT = '{"name": %(name_json)s, "arguments": %(json)s}'


def _hy3(suffix: str) -> _Form:
    return _Form(
        f"<tool_calls{suffix}>\n<tool_call{suffix}>%(name)s<tool_sep{suffix}>\n%(arguments)s</tool_call{suffix}>\n"
        f"</tool_calls{suffix}>",
        f"<arg_key{suffix}>%(key)s</arg_key{suffix}>\n<arg_value{suffix}>%(value)s</arg_value{suffix}>\n",
    )


_FORMS: Mapping[ToolFormat, _Form] = {
    "hermes": _Form(f"<tool_call>\n{_OBJECT}\n</tool_call>"),
    "qwen3_coder": _Form(
        "<tool_call>\n<function=%(name)s>\n%(arguments)s</function>\n</tool_call>",
        "<parameter=%(key)s>\n%(value)s\n</parameter>\n",
    ),
    "glm45": _Form(
        "<tool_call>%(name)s\n%(arguments)s</tool_call>",
        "<arg_key>%(key)s</arg_key>\n<arg_value>%(value)s</arg_value>\n",
    ),
    "llama3": _Form('{"name": %(name_json)s, "parameters": %(json)s}'),
    "mistral": _Form(f"[TOOL_CALLS] [{_OBJECT}]"),
    "deepseek": _Form(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>%(name)s<｜tool▁sep｜>"  # noqa: RUF001
        "%(json)s<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
    ),
    "kimi_k2": _Form(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.%(name)s:0<|tool_call_argument_begin|>"
        "%(json)s<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "gpt_oss": _Form("<|channel|>commentary to=functions.%(name)s <|constrain|>json<|message|>%(json)s<|call|>"),
    "minimax": _Form(
        '<minimax:tool_call>\n<invoke name="%(name)s">\n%(arguments)s</invoke>\n</minimax:tool_call>',
        '<parameter name="%(key)s">%(value)s</parameter>\n',
    ),
    "pythonic": _Form("[%(name)s(%(arguments)s)]", "%(key)s=%(value)s", ", ", repr),
    "cohere": _Form('<|START_ACTION|>[{"tool_name": %(name_json)s, "parameters": %(json)s}]<|END_ACTION|>'),
    "gemma4": _Form("<|tool_call>call:%(name)s%(json)s<tool_call|>", spell=_gemma4),
    "olmo3": _Form("<function_calls>%(name)s(%(arguments)s)</function_calls>", "%(key)s=%(value)s", ", ", _json),
    "seed_oss": _Form(
        "<seed:tool_call>\n<function=%(name)s>\n%(arguments)s</function>\n</seed:tool_call>",
        "<parameter=%(key)s>%(value)s</parameter>\n",
    ),
    "kimi_k3": _Form(
        '<|open|>tools<|sep|><|open|>call tool="%(quoted)s" index="1"<|sep|>'
        "%(arguments)s<|close|>call<|sep|><|close|>tools<|sep|>",
        '<|open|>argument key="%(quoted)s" type="%(type)s"<|sep|>%(value)s<|close|>argument<|sep|>',
    ),
    "minimax_m3": _Form(
        f'{_SPACE}<tool_call>\n{_SPACE}<invoke name="%(name)s">%(arguments)s{_SPACE}</invoke>\n{_SPACE}</tool_call>',
        f"{_SPACE}<%(key)s>%(value)s{_SPACE}</%(key)s>",
    ),
    "minimax_m1": _Form(f"<tool_calls>\n{_OBJECT}\n</tool_calls>"),
    "hy3": _hy3(":opensource"),
    "hy3_preview": _hy3(""),
    "json_array": _Form(f"[{_OBJECT}]"),
    "lfm2_5": _Form("<|tool_call_start|>[%(name)s(%(arguments)s)]<|tool_call_end|>", "%(key)s=%(value)s", ", ", _lfm),
    "opened_array": _Form(f"<TOOLCALL>[{_OBJECT}]</TOOLCALL>"),
}
