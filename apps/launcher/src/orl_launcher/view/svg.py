"""Charts as inline SVG: lines over steps, made of shapes whose classes the style sheet colours for light and dark.

There is no style attribute and no script, so that a page with a strict Content-Security-Policy can show it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from itertools import pairwise

from msgspec import Struct
from orl_core.text import visible

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 34
MOST_POINTS = 500  # of a line; longer ones are averaged in bins
TICKS = 4
SHARE = ((0.01, " %"),)
SECONDS = ((3600, " h"), (60, " min"), (1, " s"))
NUMBER = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, ""))


class Line(Struct, frozen=True):
    """One metric over steps; `steps` and `values` have the same length."""

    steps: tuple[int, ...]
    values: tuple[float, ...]


class Stroke(Struct, frozen=True, kw_only=True):
    """A line to draw: `style` is its class, `dots` marks each point, `label` is at its end."""

    line: Line
    style: str
    dots: bool = False
    label: str = ""


class Drawing(Struct, frozen=True, kw_only=True):
    """A chart to draw, in the largest of `units` that fits. A SHARE is scaled from 0 to 1.

    `band` is filled.

    `note` says how many rollouts were judged if the metric leaves some out.
    """

    group: str
    title: str
    note: str = ""
    strokes: tuple[Stroke, ...]
    units: tuple[tuple[float, str], ...] = NUMBER
    band: tuple[Line, Line] | None = None


class _Scale:
    """Places of steps and values in the picture."""

    def __init__(self, drawing: Drawing) -> None:
        lines = [stroke.line for stroke in drawing.strokes] + list(drawing.band or ())
        steps = [step for line in lines for step in line.steps] or [0]
        values = [value for line in lines for value in line.values] or [0.0]
        self.first, self.last = min(steps), max(*steps, min(steps) + 1)
        most = max(map(abs, values))
        self._size, self._name = next((unit for unit in drawing.units if most >= 2 * unit[0]), drawing.units[-1])
        ticks = ticks_of(min(values) / self._size, max(values) / self._size)
        self.ticks = tuple(self._size * tick for tick in (range(0, 101, 25) if drawing.units is SHARE else ticks))
        low, high = min(*self.ticks, *values), max(*self.ticks, *values)
        self._low, self._span = low, (high - low) or 1.0

    def x(self, step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (step - self.first) / (self.last - self.first), 1)

    def y(self, value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - self._low) / self._span), 1)

    def word(self, value: float) -> str:
        return f"{value / self._size:.4g}{self._name}"

    def points(self, line: Line) -> str:
        pairs = zip(line.steps, line.values, strict=True)
        return " ".join(f"{self.x(step)},{self.y(value)}" for step, value in pairs)


def draw(drawing: Drawing) -> str:
    """Return the drawing as an `<svg>` element."""
    name = escape(f"{drawing.title} over training steps")
    parts = "".join(_parts(drawing, _Scale(drawing)))
    return f'<svg role="img" aria-label="{name}" viewBox="0 0 {WIDTH} {HEIGHT}">{parts}</svg>'


def spark(line: Line) -> str:
    """Return a line without axes as a small `<svg>` element. The page has its values as text."""
    shown = thinned(line)
    points = _Scale(Drawing(group="", title="", strokes=(Stroke(line=shown, style=""),))).points(shown)
    box = f"{LEFT} 0 {WIDTH - LEFT - RIGHT} {HEIGHT - BOTTOM + TOP}"
    shape = f'viewBox="{box}" preserveAspectRatio="none" aria-hidden="true"'
    return f'<svg class="spark" {shape}><polyline points="{points}"/></svg>'


def ticks_of(low: float, high: float) -> tuple[float, ...]:
    """Return round numbers from `low` or below to `high` or above."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / TICKS))
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size * TICKS >= span)
    start, end = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return tuple(size * place for place in range(start, max(end, start + 1) + 1))


def thinned(line: Line, most: int = MOST_POINTS) -> Line:
    """Return a line of at most `most` points: the means of bins."""
    count = len(line.steps)
    if count <= most:
        return line
    edges = [round(place * count / most) for place in range(most + 1)]
    bins = list(pairwise(edges))
    return Line(
        steps=tuple(line.steps[(start + end) // 2] for start, end in bins),
        values=tuple(math.fsum(line.values[start:end]) / (end - start) for start, end in bins),
    )


def _parts(drawing: Drawing, scale: _Scale) -> Iterator[str]:
    yield from _axes(scale)
    if drawing.band is not None:
        low, high = drawing.band
        back = Line(steps=high.steps[::-1], values=high.values[::-1])
        yield f'<polygon class="band" points="{scale.points(low)} {scale.points(back)}"/>'
    for stroke in drawing.strokes:
        yield from _stroke(stroke, scale)


def _axes(scale: _Scale) -> Iterator[str]:
    for tick in scale.ticks:
        y = scale.y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{scale.word(tick)}</text>'
    for step in ticks_of(scale.first, scale.last):
        if step == round(step) and scale.first <= step <= scale.last:
            yield f'<text class="tick" x="{scale.x(step)}" y="{HEIGHT - 16}" text-anchor="middle">{step:.0f}</text>'
    yield f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">step</text>'


def _stroke(stroke: Stroke, scale: _Scale) -> Iterator[str]:
    line = thinned(stroke.line)
    if not line.steps:
        return
    style = escape(stroke.style)
    yield f'<polyline class="stroke {style}" points="{scale.points(line)}"/>'
    if stroke.dots or len(line.steps) == 1:
        for step, value in zip(line.steps, line.values, strict=True):
            place = f'cx="{scale.x(step)}" cy="{scale.y(value)}"'
            title = f"step {step}: {scale.word(value)}"
            yield f'<circle class="dot {style}" {place} r="3.2"><title>{title}</title></circle>'
    if stroke.label:
        x, y = scale.x(line.steps[-1]), scale.y(line.values[-1])
        label = escape(visible(stroke.label))
        yield f'<text class="label {style}" x="{x}" y="{y - 4}" text-anchor="end">{label}</text>'
