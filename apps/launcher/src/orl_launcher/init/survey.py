"""Ask a server of OpenReward what an environment has: splits, tasks, tools, and the secrets that it needs.

It knows nothing of files. A self-hosted server is known by its address, and lists its environments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from orl_core import RunConfig, decode_config, text_of
from orl_core.errors import ConfigError, SessionError, SessionUnavailable
from orl_rollout import Opening, OpenRewardClient
from orl_rollout.edge.secrets import PLATFORM_KEY, Scrubber, all_entries, api_key
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import TaskListing, list_tasks, served_at
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.platform import required_secrets, usual_hosts

ORGANISATION = "local"  # of environments at an address, whose servers know no organisation


class Survey(Struct, frozen=True, kw_only=True):
    """One environment. `splits` are its splits with the number of their tasks, without empty ones.

    `opening` is the beginning of an episode; without one, `fault` says why. `prompt` is its text, without values of
    secrets. `secrets` are those that it needs, `hostless` those of them for which OpenReward knows no host.
    """

    name: str
    base_url: str | None
    splits: dict[str, int]
    opening: Opening | None = None
    prompt: str = ""
    fault: str = ""
    secrets: tuple[str, ...] = ()
    hostless: tuple[str, ...] = ()


async def name_at(url: str, variant: str | None, *, seconds: float) -> str:
    """Return the name for a configuration of the environment `variant` of the server at `url`, or of its only one."""
    try:
        with as_session_error(f"asking {url} what it serves"):
            async with asyncio.timeout(seconds):
                served = await served_at(url)
    except SessionUnavailable as exc:
        raise SessionUnavailable(f"{exc}. Start the server, or correct the address") from exc
    if variant:
        if variant.lower() not in served:
            raise ConfigError(f"{url}: serves no environment {variant!r}, but {', '.join(served) or 'none'}")
        return f"{ORGANISATION}/{variant.lower()}"
    if len(served) != 1:
        raise ConfigError(f"{url}: serves {', '.join(served) or 'no environment'}. Name one with --variant")
    return f"{ORGANISATION}/{served[0]}"


async def survey(name: str, base_url: str | None, *, seconds: float) -> Survey:
    """Ask about the environment `name`, at `base_url`, else at OpenReward. Each question may take `seconds`."""
    needed: list[str] = []
    if base_url is None:
        if not api_key():
            raise ConfigError(f"{name}: OpenReward serves it. Set {PLATFORM_KEY}, or give the address of a server")
        needed = [secret.lower() for secret in await required_secrets(name, seconds=seconds) if secret != PLATFORM_KEY]
    hostless = [secret for secret in needed if not usual_hosts(secret)]
    entries = all_entries(_config(name, base_url, needed))
    kept_back = [entry.name for entry in entries if not entry.value or entry.name in hostless]
    config = _config(name, base_url, [secret for secret in needed if secret not in kept_back])
    async with OpenRewardClient(config) as client:
        with as_session_error(f"asking {name} what it serves"):
            async with asyncio.timeout(seconds):
                splits = await (await client.environment(name)).list_splits()
        listings = [await open_listing(client, name, split) for split in splits]
        full = [listing for listing in listings if listing.size]
        if not full:
            raise ConfigError(f"{name}: none of its splits ({', '.join(splits) or 'none'}) has a task")
        opening, fault = None, f"not asked, because these secrets have no value or no hosts: {', '.join(kept_back)}"
        if not kept_back:
            opening, fault = await _opening(client, full[0], seconds)
        shown = [text_of(message.content) for message in opening.messages] if opening else []
        prompt = Scrubber.of(config).scrub("\n".join(shown))
    return Survey(
        name=name,
        base_url=None if base_url is None else base_url.rstrip("/"),
        splits={listing.split: listing.size for listing in full},
        opening=opening,
        prompt=prompt,
        fault=fault,
        secrets=tuple(needed),
        hostless=tuple(hostless),
    )


def _config(name: str, base_url: str | None, secrets: Sequence[str]) -> RunConfig:
    tree = {"environments": {name: {"base_url": base_url}}, "secrets": dict.fromkeys(secrets)}
    return decode_config(tree, name)


async def _opening(client: OpenRewardClient, listing: TaskListing, seconds: float) -> tuple[Opening | None, str]:
    """Return the beginning of an episode, or None and the reason."""
    try:
        (task,) = [task async for task in list_tasks(listing, [0])]
        session = client.session(task)
        try:
            with as_session_error("opening a session"):
                async with asyncio.timeout(seconds):
                    return await session.open(task), ""
        finally:
            await session.close()
    except (ConfigError, SessionError) as exc:
        return None, str(exc)
