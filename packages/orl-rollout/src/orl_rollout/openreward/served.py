"""The environments that a server lists. Their names there are variants: the lower-case names of their classes."""

from __future__ import annotations

import msgspec
from orl_core.names import is_path_name

from orl_rollout.edge.http import HttpClient
from orl_rollout.openreward.transport import Channel, Refusal


async def served_at(url: str) -> tuple[str, ...] | None:
    """Return the environments of the server at `url`; None if it is too old to list them. Sends no key."""
    async with HttpClient(url) as http:
        return await list_served(Channel(http))


async def list_served(channel: Channel) -> tuple[str, ...] | None:
    """Return the environments of a server, sorted; None if it is too old to list them."""
    try:
        names = msgspec.convert(await channel.request("GET", "/list_environments", {}, None), list[str])
    except Refusal as refusal:
        if refusal.status not in {404, 405}:
            raise
        return None
    return tuple(sorted({name.lower() for name in names if is_path_name(name)}))
