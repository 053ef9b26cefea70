"""The terminal: a rich Console on which no control character from outside takes effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orl_core.text import visible
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text


class Terminal(Console):
    """A Console that makes texts visible when it renders them. Control codes of rich itself stay."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as `Console.print` does. If all are text, lines are not wrapped."""
        lines = all(isinstance(one, str | Text) for one in objects)
        super().print(*objects, soft_wrap=lines if soft_wrap is None else soft_wrap, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `Console.render` does, with control characters made visible."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(visible(text), style)
