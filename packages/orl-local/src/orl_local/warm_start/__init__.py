"""Supervised training before any trainer: the entry point `orl.warm_starts`.

See `orl_rollout.run_folder.contract.WarmStarter`. Importing it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_rollout.run_folder.contract import WarmStart


def recipe(model: str) -> dict[str, float]:
    """Return the settings for a model of this size; see `WarmStarter.recipe`."""
    from contextlib import suppress

    from orl_core.errors import ConfigError
    from orl_rollout.memory import config_of, shape_of

    from orl_local.settings import TINY

    with suppress(ConfigError):  # of a kind that orl does not know: no tiny one
        if shape_of(config_of(model)).parameters < TINY:
            return {"steps": 400, "batch_size": 16, "lr": 6e-3}
    return {"steps": 150, "batch_size": 32, "lr": 1e-4}


def train(start: WarmStart, report: Callable[[int, int], None]) -> dict[str, float]:
    """Train; see `WarmStarter.train`."""
    from orl_local.warm_start.training import train as train_now

    return train_now(start, report)
