"""The protocol of a policy: what a trainer must do so that a Course can drive it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from orl_rollout.loop.engine import Engine
from orl_rollout.training.rows import Row


class Policy(Protocol):
    """The weights that train, and the engine that samples with them. Its methods are called one at a time.

    Each raises an OrlError if the run cannot continue.
    """

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        """Make all updates of a step, from 1, on its rows. Return the numbers of training.

        Without rows the weights stay as they are. `logprob_difference` among the numbers is judged by the Course.
        """
        ...

    async def publish(self, version: str) -> Mapping[str, float]:
        """Let the engine sample with the present weights, under the name `version`. Return numbers of the way there."""
        ...

    def engine(self) -> Engine:
        """Return the engine of rollouts."""
        ...

    async def save(self, folder: Path, step: int) -> None:
        """Write the checkpoint after `step` steps into `folder`, whole or not at all."""
        ...
