"""Parts of long tables for the quick suite. The full suite runs every row."""

from collections.abc import Iterable
from typing import Any

import pytest


def every_fifth(rows: Iterable[Any]) -> list[Any]:
    """Return `rows`, of which all but every fifth are marked slow."""
    return [
        row if index % 5 == 0 else pytest.param(row, marks=pytest.mark.slow, id=row if isinstance(row, str) else None)
        for index, row in enumerate(rows)
    ]
