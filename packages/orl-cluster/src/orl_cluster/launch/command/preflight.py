"""Preflight checks of a launch that need no answer of the trainer: problems that prevent a start, and notes."""

from __future__ import annotations

from collections.abc import Sequence

from orl_core.config import RunConfig
from orl_core.errors import ConfigError

from orl_cluster.launch.argv import number, value_of
from orl_cluster.launch.command.layout import CONTEXT, PER_GPU, LaunchRequest
from orl_cluster.launch.command.trainer_defaults import CUSTOM_REWARD, GENERATE, PARTIAL
from orl_cluster.launch.machine.probe import TRACKERS
from orl_cluster.launch.options import CONTEXT_PARALLEL

TEACHER = "--opd-type"
SERVED_TEACHER = (
    f"a served teacher answers through {CUSTOM_REWARD}, which scores plain rows alone. For tasks, use megatron and "
    "--opd-teacher-load FOLDER"
)
MASKED = "--mask-offpolicy-in-partial-rollout"


def untracked(request: LaunchRequest) -> list[str]:
    """Return what the trainer's Python lacks to report the run as its user asks."""
    wanted = {"wandb": request.tracking.mode is not None, "tensorboard": request.trainer.tensorboard}
    installation = request.installation
    return [
        f"{module} is not installed beside {installation.trainer}: run {installation.python} -m pip install {module}"
        for module in TRACKERS
        if wanted[module] and module not in installation.found.modules
    ]


def restarted(request: LaunchRequest) -> list[str]:
    """Note whose aborted rollouts begin again, and do not go on with their tokens, under `--partial-rollout`.

    Raises:
        ConfigError: a rollout may make several samples.
    """
    if request.value(PARTIAL) is None:
        return []
    config = request.run.config
    if config.several_rows:
        setting = config.several_rows
        raise ConfigError(f"{setting} makes several samples of a rollout, which {PARTIAL} loses. Remove {setting}")
    begins = "begin again, and do not go on with their tokens"
    if request.value(MASKED) is not None:
        return [f"{MASKED}: aborted rollouts {begins}"]
    limited = [name for name, one in config.environments.items() if one.max_concurrency is not None]
    return [f"`max_concurrency` of {name}: its aborted rollouts {begins}" for name in limited]


def scoring_notes(request: LaunchRequest, plain_rows: int | None) -> list[str]:
    """Note that the user's own `--custom-rm-path` scores plain rows alone. `plain_rows` is None if nobody counted them.

    Raises:
        ConfigError: there is no plain row, so that the trainer would never call it; or a served teacher needs it.
    """
    if not request.value(CUSTOM_REWARD):
        if request.value(TEACHER) == "sglang":
            raise ConfigError(f"{TEACHER} sglang: {SERVED_TEACHER}")
        return []
    told = f"{CUSTOM_REWARD} scores plain rows, and `reward: module:function` in the configuration scores tasks"
    if plain_rows == 0:
        raise ConfigError(f"{told}: {request.run.task_data} has no plain row. Use `reward`")
    return [told]


def long_rollouts(argv: Sequence[str]) -> list[str]:
    """Note that a rollout can be longer than a micro-batch: then it trains alone."""
    context, tokens, parallel = (number(value_of(argv, name), name) for name in (CONTEXT, PER_GPU, CONTEXT_PARALLEL))
    if not context or not tokens or context <= tokens * (parallel or 1):
        return []
    return [
        f"a rollout may have {context} ids, more than {PER_GPU} {tokens} x context parallel {parallel or 1}: a longer "
        "one trains in a micro-batch of its own"
    ]


def unplayed(config: RunConfig) -> list[str]:
    """Note a reward function that scores nothing, because all rows are plain: the trainer scores those itself.

    Raises:
        ConfigError: an agent would play nothing.
    """
    if config.environments:
        return []
    if config.agent_config is not None:
        raise ConfigError(f"`agent` plays tasks, and `environments` is empty. Remove it, or give {GENERATE} after `--`")
    if config.reward is None:
        return []
    return [f"`reward` scores tasks, and all rows are plain: the trainer scores them by --rm-type or {CUSTOM_REWARD}"]
