"""slime's `--megatron-config-path` for PPO: options of the critic that differ from the actor's.

Without it slime saves actor and critic into one folder, and the critic overwrites the actor's checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from orl_cluster.launch.argv import value_of
from orl_cluster.launch.command.critic import critic_folder, critic_load
from orl_cluster.launch.command.layout import LaunchRequest
from orl_core.config.yaml import read
from orl_core.errors import ConfigError

ROLES = "--megatron-config-path"


def path_of(request: LaunchRequest) -> Path:
    """Return the file that orl writes."""
    return (request.run.folder / "megatron.json").absolute()


def files(request: LaunchRequest, argv: Sequence[str]) -> dict[Path, bytes]:
    """Return the file of the critic's own folders; none without a critic, or where the user gives the file.

    Raises:
        ConfigError: the user's file gives the critic no folder of its own, or a resumed run has no critic.
    """
    if not request.estimator.critic:
        return {}
    if own := request.value(ROLES):
        _check(own)
        return {}
    load = critic_load(argv)
    overrides = {"save": str(critic_folder(value_of(argv, "--save") or "")), **({"load": str(load)} if load else {})}
    roles = {"megatron": [{"name": "default", "role": "critic", "overrides": overrides}]}
    return {path_of(request): msgspec.json.format(msgspec.json.encode(roles), indent=2)}


def _check(own: str) -> None:
    roles: list[Any] = read(Path(own)).get("megatron") or []
    of_critic = next((role for role in roles if role.get("role") == "critic"), {})
    if "save" not in {**(of_critic.get("args") or {}), **(of_critic.get("overrides") or {})}:
        raise ConfigError(
            f"{ROLES} {own}: give the critic a `save` of its own, or it overwrites the actor's checkpoint: "
            "{megatron: [{name: default, role: critic, overrides: {save: FOLDER}}]}"
        )
