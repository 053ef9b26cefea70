"""An event loop whose clock jumps over every wait: a deadline of minutes takes no time, and no machine is too slow.

Where nothing is ready and nothing is due, a real loop would wait for ever; this one raises.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Jumping(selectors.SelectSelector):
    """Never waits: what it was asked to wait for has passed on its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits, and nothing will ever happen")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=VirtualLoop)`. `time()` begins at 0; what threads do takes no time."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now
