"""Ask OpenReward's API about an environment. The key goes to OpenReward alone (law L6)."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from orl_core.errors import SessionError, boundary

from orl_rollout.edge.http import HttpClient, read
from orl_rollout.edge.secrets import api_key
from orl_rollout.openreward.sdk import api_url

T = TypeVar("T")
REFUSALS = {
    401: "refuses the API key (HTTP 401): set OPENREWARD_API_KEY",
    402: "asks for payment (HTTP 402): add credit to the account of OPENREWARD_API_KEY at OpenReward",
}


async def ask_platform(path: str, answer_type: type[T], *, most: int, seconds: float) -> T:
    """Return the platform's answer to `GET path`, of at most `most` bytes, within `seconds`.

    Raises:
        SessionError: it does not answer in time, refuses, or answers something else.
    """
    with boundary(SessionError, f"asking OpenReward for {path}"):
        async with (
            asyncio.timeout(seconds),
            HttpClient(api_url()) as http,
            http.request("GET", path, headers={"X-API-Key": api_key()}) as answer,
        ):
            if answer.status in REFUSALS:
                raise SessionError(f"{path}: OpenReward {REFUSALS[answer.status]}")
            if answer.status != 200:
                raise SessionError(f"OpenReward does not answer {path}: HTTP {answer.status}")
            return msgspec.json.decode(await read(answer, most), type=answer_type)
