"""Secrets for servers that read them in the body of `POST /create` and ignore the header: ors-sdk, openreward < 0.1.64.

A server says so in its OpenAPI description. It is not tried out: a server that refuses the field logs what it refused.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
from msgspec import Struct, field

from orl_rollout.edge.http import NotJson, UnsafeAnswer
from orl_rollout.openreward.transport import Channel, Refusal


class _Body(Struct, frozen=True, kw_only=True):
    properties: dict[str, Any] = field(default_factory=dict[str, Any])


class _Components(Struct, frozen=True, kw_only=True):
    schemas: dict[str, _Body]


class _Description(Struct, frozen=True, kw_only=True):
    components: _Components


async def reads_secrets_in_body(channel: Channel) -> bool:
    """Return whether the server's description of `POST /create` has `secrets` in the body.

    Raises:
        aiohttp.ClientError: the server does not answer.
    """
    try:
        answer = await channel.request("GET", "/openapi.json", {}, None)
        described = msgspec.convert(answer, _Description)
    except (Refusal, UnsafeAnswer, NotJson, msgspec.ValidationError):
        return False
    return "secrets" in described.components.schemas.get("CreateSession", _Body()).properties


def secrets_of(header: str) -> dict[str, str]:
    """Return the secrets of an `X-Secrets` header, those without a value left out."""
    sent: dict[str, dict[str, Any]] = json.loads(base64.b64decode(header))
    return {name: secret["value"] for name, secret in sent.items() if secret["value"]}
