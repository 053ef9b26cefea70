"""Ask OpenReward's API about an environment. The key goes to OpenReward alone (law L6)."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from msgspec import Struct
from orl_core.errors import SessionError, boundary

from orl_rollout.edge.http import HttpClient, read
from orl_rollout.edge.secrets import api_key
from orl_rollout.openreward.sdk import api_url

SECONDS = 30.0
ANSWER_BYTES = 1 << 16
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


class _Needed(Struct, frozen=True, kw_only=True):
    secrets: list[str]


async def required_secrets(name: str, *, seconds: float = SECONDS) -> list[str]:
    """Return the names of the secrets that the platform's environment `name` needs. One's own server does not say it.

    Raises:
        SessionError: the platform does not say it within `seconds`.
    """
    path = f"/v1/environments/{name}/required-secrets"
    return (await ask_platform(path, _Needed, most=ANSWER_BYTES, seconds=seconds)).secrets


def usual_hosts(secret: str) -> list[str]:
    """Return the hosts to which OpenReward releases the secret of this name if none are given; [] if it knows none."""
    from openreward.api.sandboxes.secrets import WELL_KNOWN_SECRETS  # pyright: ignore[reportMissingTypeStubs]

    return WELL_KNOWN_SECRETS.get(secret, [])
