"""The terminal: a rich Console on which no control character from outside takes effect."""

from __future__ import annotations

from collections.abc import Iterable

from orl_core.text import visible
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class Terminal(Console):
    """A Console that makes texts visible when it renders them. Control codes of rich itself stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `Console.render` does, with control characters made visible."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(visible(text), style)
