"""Tool formats: how tools are shown to a model, and how its calls are read.

`parse` reads text; the renderer marks delimiters by id and reads with `wire_format`. To add a format, add its name to
`orl_core.names` and a row to a table `FORMATS`, or its WireFormat to `_FORMATS`. Nothing here knows token ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.errors import RenderError
from orl_core.names import TOOL_FORMATS, ToolFormat
from orl_core.text import clean, did_you_mean
from orl_core.tools import deepseek, gemma4, glm45, gpt_oss, json_calls, kimi_k3, mistral, parameter_tags, pythonic
from orl_core.tools.scan import Mark, Marked, mark
from orl_core.tools.wire_format import WireFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orl_core.messages import Action, ToolSpec


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


# Families of models by the names that people know. A name is compared in lower case, without `-`, `_` and `.`.
_FAMILIES: dict[str, ToolFormat] = {
    **dict.fromkeys(("qwen25", "qwen3", "qwen3vl", "granite4", "smollm3"), "hermes"),
    **dict.fromkeys(("qwen35", "qwen36", "nemotron3"), "qwen3_coder"),
    **dict.fromkeys(("glm46", "glm47", "glm5"), "glm45"),
    **dict.fromkeys(("llama31", "llama32", "llama33"), "llama3"),
    **dict.fromkeys(("deepseekr1", "deepseekv3", "deepseekv31", "deepseekv32"), "deepseek"),
    **dict.fromkeys(("kimik25",), "kimi_k2"),
    **dict.fromkeys(("minimaxm2", "minimaxm25"), "minimax"),
    **dict.fromkeys(("commandr7b", "commanda"), "cohere"),
    **dict.fromkeys(("hunyuana13b",), "minimax_m1"),
    **dict.fromkeys(("granite3", "nemotronnanov2"), "opened_array"),
    "lfm2": "pythonic",
    "xlam": "json_array",
}
_SEPARATORS = str.maketrans("", "", "-_. ")
_NAMES: Mapping[str, ToolFormat] = {**_FAMILIES, **{name.translate(_SEPARATORS): name for name in TOOL_FORMATS}}
# What ends a turn in a text that was decoded with its stop token. It is part of no action.
_TURN_ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>")


def tool_format(name: str) -> ToolFormat:
    """Return the tool format of this name, or of the family of models that has this name (`qwen3`, `llama-3.1`).

    Raises:
        RenderError: the name is unknown.
    """
    if known := _NAMES.get(name.lower().translate(_SEPARATORS)):
        return known
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
    """
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
