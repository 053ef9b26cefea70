"""Tool formats: how tools are shown to a model, and how its calls are read. Wire formats have a file for each family.

`parse` reads text; the renderer marks delimiters by id and reads with `wire_format`. To add a format, write its
WireFormat, and add its name to ToolFormat and `_FORMATS`. Nothing here knows token ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from orl_core.errors import RenderError
from orl_core.text import clean
from orl_core.tools import (
    cohere,
    deepseek,
    gemma4,
    glm45,
    gpt_oss,
    hermes,
    hy3,
    json_array,
    kimi_k2,
    kimi_k3,
    lfm2_5,
    llama3,
    minimax_m1,
    minimax_m3,
    mistral,
    olmo3,
    opened_array,
    parameter_tags,
    pythonic,
)
from orl_core.tools.marked import Mark, Marked, mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orl_core.messages import Action, ToolSpec
    from orl_core.tools.wire_format import WireFormat

ToolFormat = Literal[
    "hermes",
    "qwen3_coder",
    "glm45",
    "llama3",
    "mistral",
    "deepseek",
    "kimi_k2",
    "gpt_oss",
    "minimax",
    "pythonic",
    "cohere",
    "gemma4",
    "olmo3",
    "seed_oss",
    "kimi_k3",
    "minimax_m3",
    "minimax_m1",
    "hy3",
    "hy3_preview",
    "json_array",
    "lfm2_5",
    "opened_array",
]
TOOL_FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)

__all__ = [
    "TOOL_FORMATS",
    "Mark",
    "Marked",
    "ToolFormat",
    "delimiters",
    "parse",
    "parse_marked",
    "thinking",
    "wire_format",
]


_FORMATS: Mapping[ToolFormat, WireFormat] = {
    "hermes": hermes.HERMES,
    "qwen3_coder": parameter_tags.QWEN3_CODER,
    "glm45": glm45.GLM45,
    "llama3": llama3.LLAMA3,
    "mistral": mistral.MISTRAL,
    "deepseek": deepseek.DEEPSEEK,
    "kimi_k2": kimi_k2.KIMI_K2,
    "gpt_oss": gpt_oss.GPT_OSS,
    "minimax": parameter_tags.MINIMAX,
    "pythonic": pythonic.PYTHONIC,
    "cohere": cohere.COHERE,
    "gemma4": gemma4.GEMMA4,
    "olmo3": olmo3.OLMO3,
    "seed_oss": parameter_tags.SEED_OSS,
    "kimi_k3": kimi_k3.KIMI_K3,
    "minimax_m3": minimax_m3.MINIMAX_M3,
    "minimax_m1": minimax_m1.MINIMAX_M1,
    "hy3": hy3.HY3,
    "hy3_preview": hy3.HY3_PREVIEW,
    "json_array": json_array.JSON_ARRAY,
    "lfm2_5": lfm2_5.LFM2_5,
    "opened_array": opened_array.OPENED_ARRAY,
}


def parse(
    text: str,
    format: ToolFormat = "hermes",  # noqa: A002
    *,
    tools: Sequence[ToolSpec] = (),
    reasoning_opened: bool = False,
) -> Action:
    """Parse a model's text: spelled delimiters count. Total: any text gives an Action.

    `tools` are those that the model was shown: a format that carries arguments as texts takes their types from there,
    others do not look at it. No call is checked against them. `reasoning_opened` says that the prompt ended inside
    `<think>`, so that the text begins with reasoning.

    Raises:
        RenderError: `format` is not supported; no text raises.
    """
    marked = mark(clean(text), delimiters(format))
    return parse_marked(marked, format, tools=tools, reasoning_opened=reasoning_opened)


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
    """Return the wire format of calls in `format` by a model whose own format is `frame`.

    Raises:
        RenderError: `format` is not supported, or is the form of a whole action and not `frame`.
    """
    delimiters(format)
    return _FORMATS[format] if format == frame else _FORMATS[format].within(_FORMATS[frame])


def delimiters(format: ToolFormat) -> tuple[str, ...]:  # noqa: A002
    """Return the delimiters of a wire format, reasoning tags included.

    Raises:
        RenderError: `format` is not supported.
    """
    if format not in TOOL_FORMATS:
        raise RenderError(f"tool format `{format}` is not supported; the formats are: {', '.join(TOOL_FORMATS)}")
    return _FORMATS[format].delimiters


def thinking(format: ToolFormat) -> tuple[str, str]:  # noqa: A002
    """Return the opening and the closing of reasoning in a wire format."""
    return _FORMATS[format].thinking
