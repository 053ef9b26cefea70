"""HTML pages, from the templates next to this file.

A page is one file: no script, no request to anywhere. Every value that a template prints is made visible and escaped,
because episodes hold whatever environments and models said; only our own drawings (`|safe`) are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from orl_core.text import visible

from orl_launcher.view.pieces import Piece, Role
from orl_launcher.view.svg import draw, spark
from orl_launcher.view.wording import count, duration, moment, noted, number, percent, thousands

KEPT = 300  # characters of a long observation that stay in sight


def page(template: str, **values: object) -> str:
    """Render the template of this name with `values`."""
    return _templates().get_template(f"templates/{template}.html.j2").render(values)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("orl_launcher.view", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, percent, duration, count, thousands, noted, moment, draw, spark, folded)
    cast("dict[str, Any]", environment.filters).update({each.__name__: each for each in filters})
    return environment


def _finalize(value: object) -> object:
    """Make a value visible before it is escaped. The output of a macro or of `|safe` is HTML already."""
    return value if hasattr(value, "__html__") else visible(str(value))


def folded(pieces: Sequence[Piece]) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """Split the pieces of a turn: the beginning of a long observation, which is folded away, and the rest."""
    fold = sum(piece.role is Role.SHOWN for piece in pieces)
    kept = 0
    while fold and kept < KEPT:
        fold -= 1
        kept += len(pieces[fold].text)
    if sum(len(piece.text) for piece in pieces[:fold]) <= KEPT:
        fold = 0
    return pieces[:fold], pieces[fold:]
