"""A data source and a buffer filter of a user's own, which slime and miles load by their paths."""

from __future__ import annotations

import importlib
from argparse import Namespace
from typing import Any

from tests.slime.host import sources


class LastFirst:
    """Draws the last tasks first, from the trainer's own source. It is no subclass of it."""

    def __init__(self, args: Namespace) -> None:
        own = importlib.import_module(
            "miles.rollout.data_source" if hasattr(args, "miles_router_timeout") else sources()
        )
        self._args, self._own, self.filtered = args, own.RolloutDataSourceWithBuffer(args), 0
        self._waiting: list[list[Any]] = []

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Return buffered groups, then groups of the last rows."""
        groups = self._own._get_samples_from_buffer(num_samples)
        if not self._waiting:
            self._waiting = self._own.get_samples(len(self._own.dataset))
        return [*groups, *(self._waiting.pop() for _ in range(num_samples - len(groups)))]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def newest_first(args: Namespace, rollout_id: int | None, buffer: list[list[Any]], count: int) -> list[list[Any]]:
    """Take the newest groups out of the buffer, and mark them."""
    del args, rollout_id
    taken = [buffer.pop() for _ in range(min(count, len(buffer)))]
    for group in taken:
        for sample in group:
            sample.metadata["drawn"] = "newest first"
    return taken
