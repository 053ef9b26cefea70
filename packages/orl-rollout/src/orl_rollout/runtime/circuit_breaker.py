"""The breaker (promise 13): a run whose rollouts mostly end in ERROR, or that keeps meeting bugs of ours, is ended.

Without it, a dead environment would silently train on nothing, whatever filter went on sampling. A server that restarts
loses a whole batch at once, and the run is healthy: rollouts lost with their server end the run only if none succeeds
for the patience. If they are more than half, a line a minute says so. One for each process, shared by its event loops,
hence the lock.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from orl_core.config import RolloutConfig
from orl_core.errors import RunAborted

from orl_rollout.logs import Sparing, logger_of

BUGS = 3  # of ours, after which a run is ended
WINDOW = 64  # rollouts at least, before the rate of errors says anything


class CircuitBreaker:
    """Counts how rollouts end. `group_size` is the number of rollouts of one task, `patience` is in seconds."""

    def __init__(self, *, max_error_rate: float, group_size: int, patience: float = RolloutConfig().patience) -> None:
        self._max_error_rate = max_error_rate
        self._patience = patience
        self._recent: deque[tuple[str, bool]] = deque(maxlen=max(WINDOW, 2 * group_size))  # the error, and if lost
        self._succeeded = -math.inf
        self._away_since = math.inf  # no rollout has succeeded after that
        self._bugs = 0
        self._warnings = Sparing(logger_of("orl"))
        self._lock = threading.Lock()

    def saw(self, error: str, *, lost_since: float | None = None) -> None:
        """Count one rollout; `error` is empty if it did not end in ERROR.

        `lost_since` is the moment (`time.monotonic`) from which its server was away, if it was lost by that.
        """
        now = time.monotonic()
        with self._lock:
            self._recent.append((error, lost_since is not None))
            if not error:
                self._succeeded, self._away_since = now, math.inf
            elif lost_since is not None:
                self._away_since = min(self._away_since, max(self._succeeded, lost_since))
            lasts = now - self._away_since >= self._patience
            errors, lost = [text for text, _ in self._recent if text], sum(lost for _, lost in self._recent)
            counted = len(errors) - lost * (not lasts)
            recent, full = len(self._recent), len(self._recent) == self._recent.maxlen
        if len(errors) < recent < 2 * lost:
            self._warnings.warn(f"{lost} of the last {recent} rollouts were lost with their server: {errors[-1]}")
        if full and counted > self._max_error_rate * recent:
            raise RunAborted(f"{len(errors)} of the last {recent} rollouts ended in ERROR; the latest: {errors[-1]}")

    def saw_late(self, error: str) -> None:
        """Count as `error` a rollout that was counted already, as one that did not end in ERROR."""
        with self._lock:
            if ("", False) in self._recent:
                self._recent.remove(("", False))
        self.saw(error)

    def saw_bug(self, error: str) -> None:
        """Count a bug of ours."""
        with self._lock:
            self._bugs += 1
            bugs = self._bugs
        if bugs >= BUGS:
            raise RunAborted(f"{bugs} rollouts failed for a bug in orl, the latest: {error}")
