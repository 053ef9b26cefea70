"""environments.json of a run: the version of each environment that was played, as its server states it.

A run for another build than the configured one is refused. OpenReward has no other version of an environment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from orl_core.errors import ConfigError, OrlError, boundary

from orl_rollout.edge.secrets import Scrubber
from orl_rollout.run_folder.config_file import write_object

if TYPE_CHECKING:
    from orl_core.config import RunConfig

    from orl_rollout.openreward import OpenRewardClient
    from orl_rollout.openreward.environment import ServerVersion

FILE = "environments.json"
SECONDS = 60.0  # for one environment: a server may be starting


async def record_versions(config: RunConfig, folder: Path) -> None:
    """Ask every environment for its version and write the answers; null for one that does not answer.

    Each server of an environment is asked, and the first answer is written.

    Raises:
        ConfigError: a server states another build than the configured one.
    """
    versions = await asyncio.gather(*(_versions(config, name) for name in config.environments))
    answers = dict(zip(config.environments, versions, strict=True))
    for name, stated in answers.items():
        for answer in stated:
            refuse_other_build(name, config, answer)
    scrubber = Scrubber.of(config)
    tree = {
        name: scrubber.scrub_in(msgspec.to_builtins(next(filter(None, stated), None)))
        for name, stated in answers.items()
    }
    write_object(folder / FILE, tree)


def refuse_other_build(name: str, config: RunConfig, stated: ServerVersion | None) -> None:
    """Compare the build that a server stated with `version` of the configuration.

    Raises:
        ConfigError: it is another one, or none.
    """
    wanted, build = config.environments[name].version, (stated and stated.build_sha) or ""
    if wanted and not build.startswith(wanted):
        statement = f"the build {build}" if build else "no build (OPENREWARD_BUILD_SHA)"
        raise ConfigError(
            f"{name}: `version` is {wanted}, but its server states {statement}. Serve that one, or correct it"
        )


async def _versions(config: RunConfig, name: str) -> list[ServerVersion | None]:
    """Ask once for each server of an environment. A client of its own gives each a turn."""
    from orl_rollout.openreward import OpenRewardClient

    async with OpenRewardClient(config) as client:
        return [await _version(client, name) for _ in config.environments[name].addresses or ("",)]


async def _version(client: OpenRewardClient, name: str) -> ServerVersion | None:
    try:
        with boundary(OrlError, f"asking for the version of {name}"):
            async with asyncio.timeout(SECONDS):
                return await (await client.environment(name)).version()
    except OrlError:
        return None
