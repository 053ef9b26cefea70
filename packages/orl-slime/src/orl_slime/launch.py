"""`orl train slime` and `orl convert slime`: options, PPO's critic, refusals such as fully async rollouts.

It imports nothing of slime: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from orl_cluster.launch import cluster_trainer
from orl_cluster.launch.command import trainer_defaults
from orl_cluster.launch.command.command import Command, LaunchRequest
from orl_cluster.launch.command.model_shape import model_shape
from orl_cluster.launch.command.trainer_defaults import critic_folder, critic_load
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.options import PARTIAL, Options, value_of
from orl_core import ConfigError, TrainerConfig
from orl_core.config.yaml import read
from orl_core.estimators import ESTIMATORS, OPTION
from orl_rollout.run_folder.contract import Run

from orl_slime.advantages import TURN_ADVANTAGES
from orl_slime.probe import EVALUATES, FILTERS, REPLAYS, obstacle

ROLES = "--megatron-config-path"  # without it slime saves the critic over the actor's checkpoint
ADVANTAGES = "--custom-advantage-function-path"
ROLLOUT, EVALUATION, FILTER = "--rollout-function-path", "--eval-function-path", "--dynamic-sampling-filter-path"
TRANSPORT, STRAW = "--rollout-data-transport", "straw"
PRINT_SHAPE = 'source "$1" >/dev/null && printf "%s\\0" "${MODEL_ARGS[@]}"'


def _command_of(installation: Installation, run: Run) -> Command:
    """Return slime's command line."""
    shape = _shape(installation, run.config.trainer)
    request = cluster_trainer.request_of(installation, run, shape)
    if request.cluster.train_backend == "fsdp":
        raise ConfigError(
            "--train-backend fsdp: slime trains with Megatron alone since 0.2.3; leave it out, or train with miles"
        )
    trainer_defaults.refuse_by_name(request.names, plain=not run.config.environments)
    replayed, notes = trainer_defaults.replays(request, able=_has(request, REPLAYS))
    training = {**trainer_defaults.megatron(request, replayed=replayed), **_fully_async(request)}
    if request.estimator.name == "reinforce_plus_plus":
        training[ADVANTAGES] = "orl_slime.advantages.reinforce_plus_plus"
    if request.estimator.critic:
        training[ROLES] = _roles_file(request)
    if run.config.turn_advantages:
        _check_turns(request)
        training[ADVANTAGES] = TURN_ADVANTAGES
    ours = trainer_defaults.options(request, request.cluster.megatron_ckpt, training)
    argv = trainer_defaults.assemble(request, ours)
    return Command(
        request=request,
        argv=(*shape, *argv),
        files=_critic_files(request, argv),
        environment=trainer_defaults.ONE_QUEUE,
        unknown="slime, Megatron and SGLang have no option {}, which slime would ignore",
        memory=cluster_trainer.MEGATRON_MEMORY,
        problems=tuple(filter(None, [obstacle(argv)])) if installation.missing else (),
        notes=notes,
    )


def _shape(installation: Installation, trainer: TrainerConfig) -> list[str]:
    def printing(script: Path) -> list[str]:
        return ["bash", "-c", PRINT_SHAPE, "bash", str(script)]

    return model_shape(installation, trainer, ".sh", printing, separator="\0")


def _has(request: LaunchRequest, feature: str) -> bool:
    """Tell whether slime has `feature`. A slime that is missing counts as the newest."""
    installation = request.installation
    return bool(installation.missing) or feature in installation.findings.features


def _fully_async(request: LaunchRequest) -> Options:
    """Return the option of evaluation if slime's fully async rollout function refuses it; none without that function.

    It plays in one process of each node if its queue is STRAW. Then it refuses in every version.
    """
    function = request.value(ROLLOUT) or ""
    if "fully_async" not in function:
        return {}
    fully = f"{ROLLOUT} {function}"
    if not request.cluster.asynchronous:
        raise ConfigError(f"{fully} plays while slime trains: give --async, --actor-gpus and --rollout-gpus")
    for name in (FILTER, PARTIAL):
        if request.value(name) is not None and not (name == FILTER and _has(request, FILTERS)):
            raise ConfigError(f"{name}: {fully} ignores it. Remove one of them")
    if setting := request.run.config.several_rows:
        raise ConfigError(f"{setting} makes several samples of a rollout, which {fully} loses. Remove one of them")
    evaluates = _has(request, EVALUATES) and request.value(TRANSPORT) != STRAW
    other = request.run.eval_data and not evaluates
    return {EVALUATION: "slime.rollout.sglang_rollout.generate_rollout"} if other else {}


def _check_turns(request: LaunchRequest) -> None:
    """Refuse `turn_advantages` where another function is named for them, or estimator or queue have no place."""
    if ADVANTAGES in request.names:
        raise ConfigError(f"{ADVANTAGES}: `turn_advantages` sets it. Remove one of them")
    if request.value(TRANSPORT) == STRAW:
        raise ConfigError(f"{TRANSPORT} {STRAW} stores no `turn_advantages`. Remove one of them")
    estimator = request.estimator
    if not estimator.turns:
        known = ", ".join(one.name for one in ESTIMATORS.values() if one.turns)
        raise ConfigError(f"`turn_advantages` does not fit {OPTION} {estimator.name}. Use one of {known}")


def _roles_file(request: LaunchRequest) -> Path:
    """Return the file of ROLES that orl writes."""
    return (request.run.folder / "megatron.json").absolute()


def _critic_files(request: LaunchRequest, argv: Sequence[str]) -> dict[Path, bytes]:
    """Return the file of the critic's own folders; none without a critic, or where the user gives the file."""
    if not request.estimator.critic:
        return {}
    if own := request.value(ROLES):
        _check(own)
        return {}
    load = critic_load(argv)
    overrides = {"save": str(critic_folder(value_of(argv, "--save") or "")), **({"load": str(load)} if load else {})}
    roles = {"megatron": [{"name": "default", "role": "critic", "overrides": overrides}]}
    return {_roles_file(request): msgspec.json.format(msgspec.json.encode(roles), indent=2)}


def _check(own: str) -> None:
    roles: list[Any] = read(Path(own)).get("megatron") or []
    of_critic = next((role for role in roles if role.get("role") == "critic"), {})
    if "save" not in {**(of_critic.get("args") or {}), **(of_critic.get("overrides") or {})}:
        raise ConfigError(
            f"{ROLES} {own}: give the critic a `save` of its own, or it overwrites the actor's checkpoint: "
            "{megatron: [{name: default, role: critic, overrides: {save: FOLDER}}]}"
        )


TRAINER = cluster_trainer.ClusterTrainer(name="slime", command_of=_command_of, shape_of=_shape)
