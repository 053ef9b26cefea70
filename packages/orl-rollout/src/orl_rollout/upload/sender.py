"""Post to the platform until it answers 2xx, with backoff, while there is time.

A platform that is dead, overloaded or slow is retried until `Stop` ends it. Only a 4xx that speaks of the events
themselves is final. A deadline holds for a whole request. The module knows nothing of its bodies.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Sequence
from io import BytesIO

import aiohttp
from msgspec import Struct
from orl_core.errors import OrlError

from orl_rollout.http.client import HttpClient, read_error, retry_after
from orl_rollout.logs import logger_of
from orl_rollout.openreward.platform import REFUSALS
from orl_rollout.openreward.sdk import api_url
from orl_rollout.secrets.secrets import Scrubber, api_key

logger = logger_of(__name__)

FIRST_WAIT = 0.5  # seconds before the second try; doubled for each one after it
LONGEST_WAIT = 60.0
LONGEST_GIVEN_WAIT = 600.0  # the longest that a Retry-After is heeded
REQUEST_SECONDS = 60.0
LONGEST = 300  # characters of a logged failure
IDLE_SECONDS = 15.0  # for which a connection without a request is kept
_jitter = random.Random()  # noqa: S311  of its own: this runs on a thread, and trainers seed the module's generator
AGAIN = frozenset({401, 402, 404, 405, 407, 408, 425, 429})  # key, account, address or time is wrong, not the events


class Ended(OrlError):
    """There is no more time."""


class Stop:
    """When to stop: not yet, until `within` says how much time is left."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._ends = math.inf

    @property
    def asked(self) -> bool:
        """Tell whether `within` was called."""
        return self._asked.is_set()

    def within(self, seconds: float) -> None:
        """Leave so much time from now on, and end the pause that is under way."""
        self._ends = time.monotonic() + seconds
        self._asked.set()

    def left(self) -> float:
        """Return the seconds that are left; infinity before `within` was called.

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
    """The platform's answer; `retry_after` in seconds, if it asks for that."""

    status: int
    retry_after: float | None = None

    @property
    def final(self) -> bool:
        """Tell whether another try would be in vain or too much."""
        return 200 <= self.status < 300 or (400 <= self.status < 500 and self.status not in AGAIN)


class Delivery:
    """Posts bodies to the platform's `/v1/rollouts`, one at a time, over one connection while it lasts.

    It has an event loop of its own, so `post` and `hang_up` belong on one thread that has none.
    """

    def __init__(self, stop: Stop, scrubber: Scrubber, traces: Sequence[aiohttp.TraceConfig] = ()) -> None:
        self._traces = traces
        self._stop = stop
        self._scrubber = scrubber
        self._loop: asyncio.Runner | None = None
        self._http: HttpClient | None = None
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
                kind, given = str(answer.status), answer.retry_after
                why = REFUSALS.get(answer.status, f"HTTP {answer.status}")
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                kind = type(exc).__name__
                why = f"{kind}: {exc}".removesuffix(": ")
            if kind not in self._said:
                self._said.add(kind)
                line = " ".join(self._scrubber.scrub(why).split())[:LONGEST]
                logger.warning("uploads wait for the platform: %s", line)
            doubled = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures, 10))
            self._stop.pause(given if given is not None else doubled * _jitter.uniform(0.5, 1.0))
            failures += 1

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._loop is not None:
            with self._loop as loop:
                if self._http is not None:
                    loop.run(self._http.close())
        self._loop, self._http = None, None

    def _exchange(self, body: bytes) -> Answer:
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(self._ask(body, min(REQUEST_SECONDS, self._stop.left())))

    async def _ask(self, body: bytes, seconds: float) -> Answer:
        if self._http is None:
            self._http = HttpClient(api_url(), idle=IDLE_SECONDS, traces=self._traces)
        headers = {"x-api-key": api_key(), "Content-Type": "application/json"}
        async with asyncio.timeout(seconds):
            async with self._http.request("POST", "/v1/rollouts", data=BytesIO(body), headers=headers) as answer:
                await read_error(answer)  # its beginning, so that the connection can be used again
                return Answer(status=answer.status, retry_after=seconds_of(answer.headers.get("Retry-After")))


def seconds_of(value: str | None) -> float | None:
    """Return a Retry-After, seconds or a date, as seconds from now; None where it makes no sense."""
    return retry_after(value, least=FIRST_WAIT, most=LONGEST_GIVEN_WAIT)
