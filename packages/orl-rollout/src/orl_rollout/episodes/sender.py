"""Post to the platform until it answers 2xx, with backoff.

A platform that is dead, overloaded or slow is retried until the caller cancels. Only a 4xx that speaks of the events
themselves is final. A deadline holds for a whole request. The module knows nothing of its bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO

from orl_rollout.edge.http import HttpClient, read_error, retry_after
from orl_rollout.edge.retry import Waiting, always, backoff, retried
from orl_rollout.edge.secrets import api_key
from orl_rollout.openreward.platform import REFUSALS
from orl_rollout.openreward.transport import FAULTS, Refusal

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds before the second try, and before any
LONGEST_GIVEN_WAIT = 600.0  # the longest that a Retry-After is heeded
REQUEST_SECONDS = 60.0
AGAIN = frozenset({401, 402, 404, 405, 407, 408, 425, 429})  # key, account, address or time is wrong, not the events


async def post(
    http: HttpClient,
    body: bytes,
    again: Callable[[Exception], bool] = always,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int:
    """Post until there is a final answer. Return its status: a 2xx, or a 4xx that refuses the body.

    `again` is told each fault.
    """
    waiting = Waiting(pauses=backoff(FIRST_WAIT, LONGEST_WAIT), longest_wish=LONGEST_GIVEN_WAIT, sleep=sleep)
    return await retried(lambda: _ask(http, body), FAULTS, again, waiting)


async def _ask(http: HttpClient, body: bytes) -> int:
    headers = {"x-api-key": api_key(), "Content-Type": "application/json"}
    async with asyncio.timeout(REQUEST_SECONDS):
        async with http.request("POST", "/v1/rollouts", data=BytesIO(body), headers=headers) as answer:
            await read_error(answer)  # its beginning, so that the connection can be used again
            status, wish = answer.status, retry_after(answer.headers.get("Retry-After"))
    if 200 <= status < 300 or (400 <= status < 500 and status not in AGAIN):
        return status
    raise Refusal(status, REFUSALS.get(status, f"HTTP {status}"), retry_after=wish)
