"""Preflight checks of a launch that need no answer of the trainer: problems that prevent a start."""

from __future__ import annotations

from orl_core.config import RunConfig
from orl_core.errors import ConfigError

from orl_cluster.launch.command.layout import LaunchRequest
from orl_cluster.launch.command.trainer_defaults import CUSTOM_REWARD, GENERATE, PARTIAL
from orl_cluster.launch.machine.probe import TRACKERS

TEACHER = "--opd-type"
SERVED_TEACHER = (
    f"a served teacher answers through {CUSTOM_REWARD}, which scores plain rows alone. For tasks, use megatron and "
    "--opd-teacher-load FOLDER"
)


def untracked(request: LaunchRequest) -> list[str]:
    """Return what the trainer's Python lacks to report the run as its user asks."""
    wanted = {"wandb": request.tracking.mode is not None, "tensorboard": request.trainer.tensorboard}
    installation = request.installation
    if installation.missing:
        return []
    return [
        f"{module} is not installed with {installation.trainer}: run {installation.python} -m pip install {module}"
        for module in TRACKERS
        if wanted[module] and module not in installation.findings.modules
    ]


def refuse(request: LaunchRequest, plain_rows: int | None) -> None:
    """Refuse settings that the run would not obey. `plain_rows` is the number of rows without a task, if it is known.

    The user's own `--custom-rm-path` scores plain rows alone, and a served teacher answers through it.
    """
    config = request.run.config
    if request.value(PARTIAL) is not None and (setting := config.several_rows):
        raise ConfigError(f"{setting} makes several samples of a rollout, which {PARTIAL} loses. Remove {setting}")
    if not request.value(CUSTOM_REWARD) and request.value(TEACHER) == "sglang":
        raise ConfigError(f"{TEACHER} sglang: {SERVED_TEACHER}")
    if request.value(CUSTOM_REWARD) and plain_rows == 0:
        raise ConfigError(
            f"{CUSTOM_REWARD} scores plain rows, and `reward: module:function` in the configuration scores tasks: "
            f"{request.run.task_data} has no plain row. Use `reward`"
        )
    if config.agent_config is not None and not config.environments:
        raise ConfigError(f"`agent` plays tasks, and `environments` is empty. Remove it, or give {GENERATE} after `--`")


def unused_reward(config: RunConfig) -> list[str]:
    """Note a reward function that scores nothing, because all rows are plain. Another trainer may use the same file."""
    if config.environments or config.reward is None:
        return []
    return [f"`reward` scores tasks, and all rows are plain: the trainer scores them by --rm-type or {CUSTOM_REWARD}"]
