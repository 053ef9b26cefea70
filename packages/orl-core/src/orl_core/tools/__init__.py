"""Tool formats: how tools are shown to a model, how its calls are read, and how they are written.

`parse` reads text; the renderer marks delimiters by id and reads with `wire_format`. To add a format, add its name to
`orl_core.names` and a WireFormat here: a file, or a row of a table `FORMATS`. Nothing here knows token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from orl_core.errors import RenderError, expect, expect_each
from orl_core.messages import Action, ToolCall, ToolSpec
from orl_core.names import TOOL_FORMATS, ToolFormat
from orl_core.text import check_system_prompt, clean, did_you_mean
from orl_core.tools import deepseek, gemma4, glm45, gpt_oss, json_formats, mistral, parameter_tags, pythonic
from orl_core.tools.format import for_chat_template, for_system_prompt
from orl_core.tools.scan import Mark, Marked, mark
from orl_core.tools.typed import schema_of
from orl_core.tools.wire_format import WireFormat

__all__ = [
    "TOOL_FORMATS",
    "Mark",
    "Marked",
    "ToolFormat",
    "format_tools",
    "parse",
    "render_call",
    "system_prompt",
    "taught_format",
    "tool_format",
    "wire_format",
]


# `taught_format` returns the first one that a prompt shows. Formats of tags come before those of JSON, as tools may be
# shown as JSON next to an example in tags, and JSON before a single delimiter, which a prompt may name to forbid it.
_FORMATS: Mapping[ToolFormat, WireFormat] = {
    **parameter_tags.FORMATS,
    "glm45": glm45.GLM45,
    **json_formats.FORMATS,
    "mistral": mistral.MISTRAL,
    "deepseek": deepseek.DEEPSEEK,
    "gpt_oss": gpt_oss.GPT_OSS,
    "gemma4": gemma4.GEMMA4,
    **pythonic.FORMATS,
}
# Families of models as their names begin. A name is compared in lower case, alone also without `-`, `_` and `.`.
_FAMILIES: dict[str, ToolFormat] = {
    family: name for name, form in _FORMATS.items() for family in (name.replace("_", "-"), *form.spelling.families)
}
_SEPARATORS = str.maketrans("", "", "-_. ")
_NAMES: Mapping[str, ToolFormat] = {name.translate(_SEPARATORS): form for name, form in _FAMILIES.items()}
# What ends a turn in a text that was decoded with its stop token. It is part of no action.
_TURN_ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>")


def tool_format(name: str) -> ToolFormat:
    """Return the tool format of this name, of a family of models (`llama-3.1`), or of a model (`Qwen/Qwen3-0.6B`).

    Raises:
        RenderError: the name is unknown.
        TypeError: it is no text.
    """
    expect(str, "format", name)
    plain = name.lower()
    if known := _NAMES.get(plain.translate(_SEPARATORS)):
        return known
    model = plain.rpartition("/")[2]
    if begun := [family for family in _FAMILIES if f"{model}-".startswith(f"{family}-")]:
        return _FAMILIES[max(begun, key=len)]
    raise RenderError(
        f"tool format `{name}` is not supported. The formats are: {', '.join(TOOL_FORMATS)}"
        f"{did_you_mean(name, TOOL_FORMATS)}"
    )


def parse(
    text: str,
    format: str = "hermes",  # noqa: A002
    *,
    tools: Sequence[ToolSpec] = (),
    reasoning_opened: bool = False,
) -> Action:
    """Parse a model's text: spelled delimiters count. Total: any text gives an Action.

    `tools` are those that the model was shown: a format that carries arguments as texts takes their types from there,
    others do not look at it. No call is checked against them. `reasoning_opened` says that the prompt ended inside
    `<think>`, so that the text begins with reasoning. `format` may also be the name of a family of models: `qwen3`,
    `llama-3.1`. A stop token at the end of the text is left out.

    Raises:
        RenderError: `format` is not supported; no text raises.
        TypeError: `text` is no text, such as the None of a reply without content, or a tool is no ToolSpec.
    """
    expect(str, "text", text, ', "" for a reply without content')
    tools = expect_each(ToolSpec, "tools", tools or ())
    wire = wire_format(format)
    end = next((end for end in _TURN_ENDS if text.endswith(end)), "")
    marked = mark(clean(text.removesuffix(end)), wire.delimiters)
    return wire.read(marked, tools, reasoning_opened=reasoning_opened)[0]


def wire_format(name: str) -> WireFormat:
    """Return the wire format of this name, as for `tool_format`."""
    return _FORMATS[tool_format(name)]


def taught_format(system_prompt_template: str) -> ToolFormat | None:
    """Return the format of the calls that the text shows; None if it shows none that is known by its delimiters.

    Bare JSON and bare Python have no delimiter, and several formats share one opening: `tool_format` states those.
    """
    shown = system_prompt_template.replace("{{", "{").replace("}}", "}")
    return next((name for name, form in _FORMATS.items() if form.spelling.is_shown_in(shown)), None)


def render_call(call: ToolCall, format: str = "hermes") -> str:  # noqa: A002
    """Return the text of one call, its delimiters included: `parse` of it gives the call back, but for its id.

    `format` is as for `parse`. In a format that carries arguments as texts (`qwen3_coder`, `glm45`, `minimax` and
    others), `parse` needs `tools` that state their types. Formats with tags cannot escape: a value that holds a closing
    tag would be read as something else, so each text is parsed again, and such a call is refused.

    Raises:
        RenderError: the format is unknown, or it cannot express this call. The message names the call and the format.
    """
    expect(ToolCall, "call", call)
    name = tool_format(format)
    text = _FORMATS[name].spelling.write(call)
    read = parse(text, name, tools=[ToolSpec(name=call.name, parameters=schema_of(call.arguments))])
    if [structs.replace(one, id=call.id) for one in read.calls] != [call] or read != Action(calls=read.calls):
        raise RenderError(
            f"the format `{name}` cannot express the call of `{call.name}`: an argument holds one of its delimiters, "
            "or a name or a value that it cannot write. Change the argument, or use a format that writes JSON"
        )
    return text


def format_tools(tools: Sequence[ToolSpec], format: str = "hermes") -> str:  # noqa: A002
    """Return the list of tools as the chat templates of this tool format print it, odd white space included.

    `format` is the name of a tool format, or of a family of models, as for `parse`.

    Raises:
        RenderError: the format is unknown.
        TypeError: a tool is no ToolSpec.
    """
    return wire_format(format).spelling.show(for_chat_template(tools))


def system_prompt(tools: Sequence[ToolSpec], format: str = "hermes", template: str | None = None) -> str:  # noqa: A002
    """Return a system prompt that shows the tools and how to call one, for a model whose chat template shows none.

    `template` is a text with `{tools}`, as the setting `system_prompt_template`: the tools are filled in as one JSON
    object a line, with the cookbook's keys `name`, `arguments_schema` and `description`; `format_tools` writes
    `parameters`, as chat templates do. None is a short text with `format_tools` and one call in the format.

    Raises:
        RenderError, TypeError: as `format_tools`.
        ValueError: the template does not hold `{tools}` alone.
    """
    if template is not None:
        check_system_prompt(template)
        return template.format(tools=for_system_prompt(tools))
    shown = format_tools(tools, format)
    example = render_call(ToolCall(name="tool_name", arguments={"argument_name": "value"}), format)
    return (
        f"You can use these tools:\n\n{shown}\n\nTo call a tool, write its name and arguments like this:\n\n{example}"
    )
