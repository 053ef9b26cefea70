"""The indexes of the journals that somebody looks at, kept up to date by a thread while the server runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from orl_core.errors import OrlError
from orl_rollout.logs import logger_of

from orl_launcher.view.index import Index

PERIOD = 2.0  # seconds between two looks at a journal
FIRST_SECONDS = 0.5  # that the first page of a journal waits for its index
IDLE = 60.0  # seconds after the last page of a run, from which its journal is left alone
logger = logger_of(__name__)


class Indexes:
    """Indexes by journal, in the folder `cache`."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._indexes: dict[Path, Index] = {}
        self._asked: dict[Path, float] = {}
        self._read: dict[Path, threading.Event] = {}  # set once the whole journal was read
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._follow, name="orl-view-index", daemon=True)

    def start(self) -> None:
        """Begin to follow journals."""
        self._thread.start()

    def end(self) -> None:
        """Stop the thread after its batch."""
        self._ended = True
        self._wake.set()
        self._thread.join()

    def of(self, journal: Path) -> Index:
        """Return the index of a journal, which is followed from now on. A large one may not hold everything yet.

        Raises:
            OrlError: the cache cannot be written.
        """
        with self._lock:
            index = self._indexes.get(journal)
            if index is None:
                index = self._indexes[journal] = Index(journal, self._cache)
                self._read[journal] = threading.Event()
            self._asked[journal] = time.monotonic()
        self._wake.set()
        self._read[journal].wait(FIRST_SECONDS)
        return index

    def _follow(self) -> None:
        while not self._ended:
            self._wake.clear()
            with self._lock:
                now = time.monotonic()
                followed = [one for one, asked in self._asked.items() if now - asked < IDLE]
            for journal in followed:
                self._refresh(journal)
            self._wake.wait(PERIOD if followed else None)

    def _refresh(self, journal: Path) -> None:
        try:
            for _ in self._indexes[journal].refresh():
                if self._ended:
                    return
        except OrlError as fault:
            logger.warning("%s", fault)
        self._read[journal].set()
