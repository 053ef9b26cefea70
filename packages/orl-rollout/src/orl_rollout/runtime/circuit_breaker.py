"""The breaker (promise 13): a run whose rollouts mostly end in ERROR, or that keeps meeting bugs of ours, is ended.

Without it, a dead environment would silently train on nothing, whatever filter went on sampling. One for each process,
shared by its event loops, hence the lock.
"""

from __future__ import annotations

import threading
from collections import deque

from orl_core.errors import RunAborted

BUGS = 3  # of ours, after which a run is ended
WINDOW = 64  # rollouts at least, before the rate of errors says anything


class CircuitBreaker:
    """Counts how rollouts end. `group_size` is the number of rollouts of one task."""

    def __init__(self, *, max_error_rate: float, group_size: int) -> None:
        self._max_error_rate = max_error_rate
        self._recent: deque[str] = deque(maxlen=max(WINDOW, 2 * group_size))
        self._bugs = 0
        self._lock = threading.Lock()

    def saw(self, error: str) -> None:
        """Count one rollout; `error` is empty where it did not end in ERROR.

        Raises:
            RunAborted: more than `max_error_rate` of the last rollouts ended in ERROR; names the latest fault.
        """
        with self._lock:
            self._recent.append(error)
            errors = sum(bool(entry) for entry in self._recent)
            full = len(self._recent) == self._recent.maxlen
        if full and errors > self._max_error_rate * len(self._recent):
            latest = next(entry for entry in reversed(self._recent) if entry)
            raise RunAborted(f"{errors} of the last {len(self._recent)} rollouts ended in ERROR; the latest: {latest}")

    def saw_late(self, error: str) -> None:
        """Count as `error` a rollout that was counted already, as one that did not end in ERROR.

        Raises:
            RunAborted: as `saw`.
        """
        with self._lock:
            if "" in self._recent:
                self._recent.remove("")
        self.saw(error)

    def saw_bug(self, error: str) -> None:
        """Count a bug of ours.

        Raises:
            RunAborted: it is the third.
        """
        with self._lock:
            self._bugs += 1
            bugs = self._bugs
        if bugs >= BUGS:
            raise RunAborted(f"{bugs} rollouts failed for a bug in orl, the latest: {error}")
