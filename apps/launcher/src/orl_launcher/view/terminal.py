"""The terminal: a rich Console on which no control character from outside takes effect, whoever prints it and how."""

from __future__ import annotations

from collections.abc import Iterable

from orl_core.text import visible
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class Terminal(Console):
    """A Console whose texts are made visible when they are rendered. What rich itself steers with stays as it is."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as a Console does; see there."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(visible(text), style)
