"""Tool formats: how tools are shown to a model, and how the calls that it writes are read. One file a wire format.

`parse` is the text-only form, for projects that hold text and not ids. The renderer marks delimiters by id and calls
`parse_marked`. Nothing here knows token ids; a further format adds a module, a name to ToolFormat and two cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from orl_core.errors import RenderError
from orl_core.tools import hermes
from orl_core.tools.marked import Mark, Marked, mark
from orl_core.tools.strict_json import without_surrogates

if TYPE_CHECKING:
    from orl_core.messages import Action, Span

ToolFormat = Literal["hermes"]
TOOL_FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)

__all__ = ["TOOL_FORMATS", "Mark", "Marked", "ToolFormat", "delimiters", "parse", "parse_marked", "read_marked"]


def parse(text: str, format: ToolFormat = "hermes", *, reasoning_opened: bool = False) -> Action:  # noqa: A002
    """What a model said, from its text alone: spelled delimiters count. Total: any text gives an Action.

    `reasoning_opened` says that the prompt ended inside `<think>`, so that the text begins with reasoning.

    Raises:
        RenderError: `format` is not supported; no text raises.
    """
    marked = mark(without_surrogates(text), delimiters(format))
    return parse_marked(marked, format, reasoning_opened=reasoning_opened)


def parse_marked(marked: Marked, format: ToolFormat, *, reasoning_opened: bool = False) -> Action:  # noqa: A002
    """What a model said, from a text whose delimiters are marked. Total."""
    match format:
        case "hermes":
            return hermes.parse(marked, reasoning_opened=reasoning_opened)


def read_marked(
    marked: Marked,
    format: ToolFormat,  # noqa: A002
    *,
    reasoning_opened: bool = False,
) -> tuple[Action, tuple[Span, ...] | None]:
    """What `parse_marked` gives, and the places of its parts in the marked text; None where the format tells none."""
    match format:
        case "hermes":
            return hermes.read(marked, reasoning_opened=reasoning_opened)


def delimiters(format: ToolFormat) -> tuple[str, ...]:  # noqa: A002
    """The delimiters of a wire format, reasoning tags included.

    Raises:
        RenderError: `format` is not supported.
    """
    if format not in TOOL_FORMATS:
        raise RenderError(f"tool format `{format}` is not supported; the formats are: {', '.join(TOOL_FORMATS)}")
    match format:
        case "hermes":
            return hermes.DELIMITERS
