"""The secrets that the platform says an environment needs. A server of one's own does not say it."""

from __future__ import annotations

from msgspec import Struct

from orl_rollout.openreward.platform import ask_platform

SECONDS = 30.0
ANSWER_BYTES = 1 << 16


class _Needed(Struct, frozen=True, kw_only=True):
    secrets: list[str]


async def required_secrets(name: str, *, seconds: float = SECONDS) -> list[str]:
    """Return the names of the secrets that the platform's environment `name` needs.

    Raises:
        SessionError: the platform does not say it within `seconds`.
    """
    path = f"/v1/environments/{name}/required-secrets"
    return (await ask_platform(path, _Needed, most=ANSWER_BYTES, seconds=seconds)).secrets


def usual_hosts(secret: str) -> list[str]:
    """Return the hosts to which OpenReward releases the secret of this name if none are given; [] if it knows none."""
    from openreward.api.sandboxes.secrets import WELL_KNOWN_SECRETS  # pyright: ignore[reportMissingTypeStubs]

    return WELL_KNOWN_SECRETS.get(secret, [])
