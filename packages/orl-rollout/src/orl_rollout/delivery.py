"""Posting to the platform until it answers 2xx, and how long there is still time for that.

A platform that is dead, overloaded or slow is waited for, ever longer up to a cap, without an end but that which `Stop`
sets. Only an answer that speaks of the events themselves (a 4xx) is final. The module knows nothing of what it posts.
"""

from __future__ import annotations

import http.client
import logging
import math
import random
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from msgspec import Struct
from orl_core.errors import OrlError

from orl_rollout.openreward.sdk import api_url
from orl_rollout.secrets import Scrubber, api_key

logger = logging.getLogger(__name__)

FIRST_WAIT = 0.5  # seconds before the second try; doubled for each one after it
LONGEST_WAIT = 60.0
LONGEST_GIVEN_WAIT = 600.0  # the longest that a Retry-After is heeded
REQUEST_SECONDS = 60.0
ANSWER_BYTES = 1 << 20  # an answer's body is read so far, to use the connection again
AGAIN = frozenset({401, 404, 405, 407, 408, 425, 429})  # the key, the address or the time is wrong, not the events


class Ended(OrlError):
    """There is no more time."""


class Stop:
    """When to stop: not yet, until `within` says how much time is left."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._ends = math.inf

    @property
    def asked(self) -> bool:
        """Whether `within` was called."""
        return self._asked.is_set()

    def within(self, seconds: float) -> None:
        """Leave so much time from now on, and end the pause that is under way."""
        self._ends = time.monotonic() + seconds
        self._asked.set()

    def left(self) -> float:
        """The seconds that are left; infinity before `within` was called.

        Raises:
            Ended: none are.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise Ended("there was no time for more")
        return left

    def wait(self, seconds: float) -> None:
        """Wait, until `within` is called at the longest."""
        self._asked.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait, until `within` is called at the longest; after that, the whole of it, if there will be time left.

        Raises:
            Ended: there will be none.
        """
        if not self.asked:
            self.wait(seconds)
        elif seconds < self.left():
            time.sleep(seconds)
        else:
            raise Ended("there was no time for more")


class Answer(Struct, frozen=True, kw_only=True):
    """What the platform said; `retry_after` in seconds, where it asked for that."""

    status: int
    retry_after: float | None = None

    @property
    def final(self) -> bool:
        """Whether another try would be in vain or too much."""
        return 200 <= self.status < 300 or (400 <= self.status < 500 and self.status not in AGAIN)


class Delivery:
    """Posts bodies to the platform's `/v1/rollouts`, one at a time, over one connection while it lasts."""

    def __init__(self, stop: Stop, scrubber: Scrubber) -> None:
        self._stop = stop
        self._scrubber = scrubber
        self._url = urlsplit(api_url())
        self._connection: http.client.HTTPConnection | None = None
        self._said: set[str] = set()  # kinds of failures that were logged

    def post(self, body: bytes) -> int:
        """Post until there is a final answer; its status: a 2xx, or a 4xx that refuses the body.

        Raises:
            Ended: there was no time for that.
        """
        failures = 0
        while True:
            given = None
            try:
                answer = self._exchange(body)
                if answer.final:
                    return answer.status
                kind, why, given = str(answer.status), f"HTTP {answer.status}", answer.retry_after
            except (OSError, http.client.HTTPException, ValueError) as exc:
                kind = type(exc).__name__
                why = f"{kind}: {exc}"
            if kind not in self._said:
                self._said.add(kind)
                logger.warning("uploads wait for the platform: %s", self._scrubber.scrub(why))
            doubled = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures, 10))
            self._stop.pause(given if given is not None else doubled * random.uniform(0.5, 1.0))  # noqa: S311
            failures += 1

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, body: bytes) -> Answer:
        connection, self._connection = self._connection or self._connect(), None
        try:
            connection.timeout = min(REQUEST_SECONDS, self._stop.left())
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            headers = {"x-api-key": api_key(), "Content-Type": "application/json"}
            connection.request("POST", f"{self._url.path.rstrip('/')}/v1/rollouts", body, headers)
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES)
            if answer.isclosed() and connection.sock is not None:
                self._connection = connection
            return Answer(status=answer.status, retry_after=seconds_of(answer.headers.get("Retry-After")))
        finally:
            if self._connection is None:
                connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.netloc)


def seconds_of(retry_after: str | None) -> float | None:
    """A Retry-After, seconds or a date, as seconds from now; None where there is none that makes sense."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, FIRST_WAIT), LONGEST_GIVEN_WAIT) if math.isfinite(seconds) else None
