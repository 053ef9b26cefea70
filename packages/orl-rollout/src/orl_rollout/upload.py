"""Uploads of finished rollouts to OpenReward, in the background, on the platform's wire form.

What is uploaded are journal entries, so nothing is lost that could not be uploaded again: the ids of all events derive
from the run's and the rollout's names, and a repeat changes nothing. One thread of its own, on no event loop, sends
them in order; a full queue or a platform that stays away costs entries, never time or a failure of a rollout. An entry
that echoes a secret is not uploaded (law L6).
"""

from __future__ import annotations

import http.client
import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, boundary

from orl_rollout.events import events_of
from orl_rollout.journal import Entry
from orl_rollout.openreward.sdk import api_url
from orl_rollout.secrets import Scrubber, api_key

logger = logging.getLogger(__name__)

WAITING = 1_000  # entries in the queue
BATCH = 128  # events in one request
TRIES = 5  # of one request, 0.5 s after the first and doubling
REQUEST_SECONDS = 10.0


def uploads(config: RunConfig, env_name: str) -> bool:
    """Whether rollouts of this environment are uploaded: as `rollout.upload` says, else with a key, from the platform.

    Raises:
        ConfigError: `rollout.upload` is set and there is no key.
    """
    if config.rollout.upload and not api_key():
        raise ConfigError("`rollout.upload` is on: set OPENREWARD_API_KEY")
    if config.rollout.upload is not None:
        return config.rollout.upload
    return bool(api_key()) and config.environments[env_name].base_url is None


class Counts(Struct, kw_only=True):
    """What became of the entries: `refused` for their secrets, `dropped` for a full queue, `failed` on the way."""

    sent: int = 0
    refused: int = 0
    dropped: int = 0
    failed: int = 0


class Uploader:
    """Sends journal entries of one run. One for each process; any thread may submit.

    Raises:
        ConfigError: `rollout.upload` is set and there is no key.
    """

    def __init__(self, config: RunConfig) -> None:
        self._chosen = frozenset(name for name in config.environments if uploads(config, name))
        self.counts = Counts()
        self._config = config
        self._scrubber = Scrubber.of(config)
        self._queue: queue.Queue[Entry | None] = queue.Queue(WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orl-uploads", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def submit(self, entry: Entry) -> None:
        """Queue an entry, if its environment's rollouts are uploaded. Never waits, never raises."""
        if entry.trajectory.job.task.env_name not in self._chosen:
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self.counts.dropped += 1

    def close(self, seconds: float = 10.0) -> None:
        """Send what is queued, for at most `seconds`; what is left stays in the journal."""
        ends = time.monotonic() + seconds
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(max(0.0, ends - time.monotonic()))
        self._stopping.set()
        if self._thread.is_alive():
            logger.warning("uploads: %d rollouts are left in the journal", self._queue.qsize())

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None and not self._stopping.is_set():
            try:
                with boundary(OrlError, f"uploading {entry.key}"):
                    self._upload(entry)
            except OrlError as fault:
                self.counts.failed += 1
                logger.warning("%s", self._scrubber.scrub(str(fault)))

    def _upload(self, entry: Entry) -> None:
        events = list(events_of(entry, self._config))
        if entry.trajectory.leaked or self._scrubber.find_in(events):
            self.counts.refused += 1
        elif self._send(events[:1]) and all(
            self._send(events[start : start + BATCH]) for start in range(1, len(events), BATCH)
        ):
            self.counts.sent += 1
        else:
            self.counts.failed += 1

    def _send(self, events: Sequence[dict[str, Any]]) -> bool:
        """Post events until a 2xx; False where the platform refuses them or stays away."""
        body = msgspec.json.encode({"events": events})
        status = "no answer"
        for number in range(TRIES):
            if number and self._stopping.wait(0.5 * 2 ** (number - 1)):
                return False
            try:
                answer = _post(body)
            except (OSError, http.client.HTTPException) as exc:
                status = f"{type(exc).__name__}: {exc}"
                continue
            if 200 <= answer < 300:
                return True
            status = f"HTTP {answer}"
            if answer < 500 and answer not in {408, 429}:
                break
        logger.warning("uploads: %d events were not taken: %s", len(events), status)
        return False


def _post(body: bytes) -> int:
    url = urlsplit(api_url())
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=REQUEST_SECONDS)
    try:
        headers = {"x-api-key": api_key(), "Content-Type": "application/json"}
        connection.request("POST", f"{url.path.rstrip('/')}/v1/rollouts", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
