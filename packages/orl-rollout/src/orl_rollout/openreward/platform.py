"""OpenReward itself: addresses, SDK, words of its refusals such as 401, and what its API knows of tasks and secrets.

The key goes only to OpenReward (law L6), whoever serves the environment. orl uses the SDK's header of secrets. It uses
none of its requests, because they follow redirects with the key.
"""

from __future__ import annotations

import asyncio
import functools
import os
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from orl_core.errors import SessionError, boundary

from orl_rollout.edge.http import HttpClient, read
from orl_rollout.edge.secrets import api_key

SECONDS = 30.0
ANSWER_BYTES = 1 << 16
REFUSALS = {
    401: "refuses the API key (HTTP 401): set OPENREWARD_API_KEY",
    402: "asks for payment (HTTP 402): add credit to the account of OPENREWARD_API_KEY at OpenReward",
}


class _Needed(Struct, frozen=True, kw_only=True):
    secrets: list[str]


async def required_secrets(name: str, *, seconds: float = SECONDS) -> list[str]:
    """Return the secrets that the platform's environment `name` needs. Self-hosted servers do not list theirs.

    Raises:
        SessionError: the platform does not say it within `seconds`.
    """
    path = f"/v1/environments/{name}/required-secrets"
    with boundary(SessionError, f"asking OpenReward for {path}"):
        async with (
            asyncio.timeout(seconds),
            HttpClient(api_url()) as http,
            http.request("GET", path, headers={"X-API-Key": api_key()}) as answer,
        ):
            if answer.status != 200:
                refusal = REFUSALS.get(answer.status, f"does not answer: HTTP {answer.status}")
                raise SessionError(f"{path}: OpenReward {refusal}")
            return msgspec.json.decode(await read(answer, ANSWER_BYTES), type=_Needed).secrets


def usual_hosts(secret: str) -> list[str]:
    """Return the hosts to which OpenReward releases the secret of this name if none are given; [] if it knows none."""
    return sdk_secrets().WELL_KNOWN_SECRETS.get(secret, [])


def session_url() -> str:
    """Return the address of sessions: `OPENREWARD_SESSION_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_SESSION_URL") or _subdomain("sessions")


def api_url() -> str:
    """Return the address of uploads: `OPENREWARD_API_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_API_URL") or _subdomain("api")


def _subdomain(name: str) -> str:
    url = urlsplit(os.environ.get("OPENREWARD_URL") or "https://openreward.ai")
    return url._replace(netloc=f"{name}.{url.netloc}").geturl()


@functools.cache
def sdk_secrets() -> Any:
    """Return the SDK's module of secrets without its package, which imports the clients of other services (3 s)."""
    package: Any = find_spec("openreward")
    file = Path(package.submodule_search_locations[0], "api", "sandboxes", "secrets.py")
    spec: Any = spec_from_file_location("openreward_secrets", file)
    spec.loader.exec_module(module := module_from_spec(spec))
    return module
