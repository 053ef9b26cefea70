"""Tool formats: how tools are shown to a model, and how its calls are read.

`parse` reads text; the renderer marks delimiters by id and reads with `wire_format`. To add a format, add its name to
`orl_core.names` and a row to a table `FORMATS`, or its WireFormat to `_FORMATS`. Nothing here knows token ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.errors import RenderError, expect, expect_each
from orl_core.messages import ToolSpec
from orl_core.names import TOOL_FORMATS, ToolFormat
from orl_core.text import clean, did_you_mean
from orl_core.tools import deepseek, gemma4, glm45, gpt_oss, json_calls, kimi_k3, mistral, parameter_tags, pythonic
from orl_core.tools.scan import Mark, Marked, mark
from orl_core.tools.wire_format import WireFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orl_core.messages import Action


__all__ = [
    "TOOL_FORMATS",
    "Mark",
    "Marked",
    "ToolFormat",
    "delimiters",
    "parse",
    "parse_marked",
    "thinking",
    "tool_format",
    "wire_format",
]


_FORMATS: Mapping[ToolFormat, WireFormat] = {
    **json_calls.FORMATS,
    **pythonic.FORMATS,
    **parameter_tags.FORMATS,
    "glm45": glm45.GLM45,
    "mistral": mistral.MISTRAL,
    "deepseek": deepseek.DEEPSEEK,
    "gpt_oss": gpt_oss.GPT_OSS,
    "gemma4": gemma4.GEMMA4,
    "kimi_k3": kimi_k3.KIMI_K3,
}


# Families of models as their names begin. A name is compared in lower case, alone also without `-`, `_` and `.`.
_FAMILIES: dict[str, ToolFormat] = {
    **dict.fromkeys(("qwen2.5", "qwen3", "qwen3-vl", "qwen3-next", "granite-4", "granite-4.0", "smollm3"), "hermes"),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "qwen3-coder-next", "nemotron-3", "step-3.5"), "qwen3_coder"),
    **dict.fromkeys(("glm-4.5", "glm-4.6", "glm-4.7", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3"), "glm45"),
    **dict.fromkeys(("llama-3.1", "llama-3.2", "llama-3.3", "llama-4"), "llama3"),
    **dict.fromkeys(("deepseek-r1", "deepseek-v3", "deepseek-v3.1", "deepseek-v3.2", "deepseek-v4"), "deepseek"),
    **dict.fromkeys(("kimi-k2.5", "kimi-k2-thinking"), "kimi_k2"),
    **dict.fromkeys(("minimax-m2", "minimax-m2.5", "minimax-m2.7"), "minimax"),
    **dict.fromkeys(("command-r7b", "command-a"), "cohere"),
    "hunyuan-a13b": "minimax_m1",
    **dict.fromkeys(("granite-3", "granite-3.3", "nemotron-nano-v2"), "opened_array"),
    "ministral-3": "mistral",
    "lfm2": "pythonic",
    "lfm2.5": "lfm2_5",
    "gemma-4": "gemma4",
    "olmo-3": "olmo3",
    "xlam": "json_array",
    **{name.replace("_", "-"): name for name in TOOL_FORMATS},
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
    name = tool_format(format)
    end = next((end for end in _TURN_ENDS if text.endswith(end)), "")
    marked = mark(clean(text.removesuffix(end)), delimiters(name))
    return parse_marked(marked, name, tools=tools, reasoning_opened=reasoning_opened)


def parse_marked(
    marked: Marked,
    format: ToolFormat,  # noqa: A002
    *,
    tools: Sequence[ToolSpec] = (),
    reasoning_opened: bool = False,
) -> Action:
    """Parse a text whose delimiters are marked. Total. `tools` as for `parse`."""
    return _FORMATS[format].read(marked, tools, reasoning_opened=reasoning_opened)[0]


def wire_format(format: ToolFormat, frame: ToolFormat) -> WireFormat:  # noqa: A002
    """Return the wire format of calls in `format` by a model whose own format is `frame`."""
    delimiters(format)
    return _FORMATS[format] if format == frame else _FORMATS[format].within(_FORMATS[frame])


def delimiters(format: ToolFormat) -> tuple[str, ...]:  # noqa: A002
    """Return the delimiters of a wire format, reasoning tags included."""
    return _FORMATS[tool_format(format)].delimiters


def thinking(format: ToolFormat) -> tuple[str, str]:  # noqa: A002
    """Return the opening and the closing of reasoning in a wire format."""
    return _FORMATS[format].thinking
