"""Tool formats: how tools are shown to a model, and how the calls that it writes are read. One file a wire format.

`parse` is the text-only form, for projects that hold text and not ids. The renderer marks delimiters by id and calls
`parse_marked`. Nothing here knows token ids; a further format adds a module, a name to ToolFormat and a line below.
What all formats decide alike stands in `scan` (text, reasoning, order), `json_calls`, `strict_json`, `tagged`, and in
`typed`, which gives arguments their types where a format carries only texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

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
    minimax,
    minimax_m1,
    minimax_m3,
    mistral,
    olmo3,
    opened_array,
    pythonic,
    qwen3_coder,
    seed_oss,
)
from orl_core.tools.marked import Mark, Marked, mark
from orl_core.tools.typed import typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orl_core.messages import Action, ToolSpec
    from orl_core.tools.scan import Parsed

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
    "read_marked",
    "thinking",
]


class _WireFormat(Protocol):
    """Interface of a wire format's module."""

    @property
    def DELIMITERS(self) -> tuple[str, ...]: ...  # noqa: N802

    @property
    def THINKING(self) -> tuple[str, str]: ...  # noqa: N802

    def parse(self, marked: Marked, *, reasoning_opened: bool = False) -> Parsed: ...


_FORMATS: Mapping[ToolFormat, _WireFormat] = {
    "hermes": hermes,
    "qwen3_coder": qwen3_coder,
    "glm45": glm45,
    "llama3": llama3,
    "mistral": mistral,
    "deepseek": deepseek,
    "kimi_k2": kimi_k2,
    "gpt_oss": gpt_oss,
    "minimax": minimax,
    "pythonic": pythonic,
    "cohere": cohere,
    "gemma4": gemma4,
    "olmo3": olmo3,
    "seed_oss": seed_oss,
    "kimi_k3": kimi_k3,
    "minimax_m3": minimax_m3,
    "minimax_m1": minimax_m1,
    "hy3": hy3.RELEASED,
    "hy3_preview": hy3.PREVIEW,
    "json_array": json_array,
    "lfm2_5": lfm2_5,
    "opened_array": opened_array,
}
_CARRIES_TEXTS: frozenset[ToolFormat] = frozenset(
    {"qwen3_coder", "glm45", "minimax", "minimax_m3", "hy3", "hy3_preview", "seed_oss"}
)
_PYTHON: frozenset[ToolFormat] = frozenset({"seed_oss", "qwen3_coder"})
_NESTED: frozenset[ToolFormat] = frozenset({"minimax_m3"})


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
    return read_marked(marked, format, tools=tools, reasoning_opened=reasoning_opened)[0]


def read_marked(
    marked: Marked,
    format: ToolFormat,  # noqa: A002
    *,
    tools: Sequence[ToolSpec] = (),
    reasoning_opened: bool = False,
) -> Parsed:
    """Parse as `parse_marked` does, and return the places of its parts in the marked text."""
    action, spans = _FORMATS[format].parse(marked, reasoning_opened=reasoning_opened)
    if action.calls and format in _CARRIES_TEXTS:
        action = typed(action, tools, nested=format in _NESTED, python=format in _PYTHON)
    return action, spans


def delimiters(format: ToolFormat) -> tuple[str, ...]:  # noqa: A002
    """The delimiters of a wire format, reasoning tags included.

    Raises:
        RenderError: `format` is not supported.
    """
    if format not in TOOL_FORMATS:
        raise RenderError(f"tool format `{format}` is not supported; the formats are: {', '.join(TOOL_FORMATS)}")
    return _FORMATS[format].DELIMITERS


def thinking(format: ToolFormat) -> tuple[str, str]:  # noqa: A002
    """Return the opening and the closing of reasoning in a wire format."""
    return _FORMATS[format].THINKING
