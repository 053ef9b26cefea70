"""`orl train slime`: slime's command line, checked and run by `orl_cluster.launch.launch`.

It imports nothing of slime: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

from orl_cluster.launch import launch, trainer_defaults
from orl_cluster.launch.argv import Options
from orl_cluster.launch.command import Command
from orl_cluster.launch.layout import Installation, LaunchRequest
from orl_cluster.launch.model_shape import model_shape
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run

from orl_slime import critic
from orl_slime.advantages import TURN_ADVANTAGES

ADVANTAGES = "--custom-advantage-function-path"
TURN_ESTIMATORS = ("grpo", "gspo", "cispo")  # they train on the advantages that they are given
PRINT_SHAPE = 'source "$1" >/dev/null && printf "%s\\0" "${MODEL_ARGS[@]}"'


def _command_of(installation: Installation, run: Run) -> Command:
    """Return slime's command line.

    Raises:
        ConfigError: an option that orl owns or that slime no longer has, or sizes that do not fit together.
    """
    request = launch.request_of(installation, run)
    shape = model_shape(request, ".sh", lambda script: ["bash", "-c", PRINT_SHAPE, "bash", str(script)], separator="\0")
    if request.trainer.train_backend == "fsdp":
        raise ConfigError(
            "--train-backend fsdp: slime trains with Megatron alone since 0.2.3; leave it out, or train with miles"
        )
    trainer_defaults.refuse_by_name("slime", request.names, trainer_defaults.MEGATRON_GONE)
    training = {**trainer_defaults.megatron(request), **_estimator_options(request)}
    if run.config.turn_advantages:
        training = {**training, **_turn_advantages(request)}
    ours = trainer_defaults.options(request, request.trainer.megatron_ckpt, training, parallel=True)
    argv = trainer_defaults.assemble(request, ours)
    return Command(
        request=request,
        argv=(*shape, *argv),
        files=critic.files(request, argv),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        unknown="slime, Megatron and SGLang have no option {}, which slime would ignore",
        memory=launch.MEGATRON_MEMORY,
    )


def _estimator_options(request: LaunchRequest) -> Options:
    estimator = trainer_defaults.estimator_of(request)
    if estimator == "reinforce_plus_plus":
        return {ADVANTAGES: "orl_slime.advantages.reinforce_plus_plus"}
    return {critic.ROLES: critic.path_of(request)} if estimator == "ppo" else {}


def _turn_advantages(request: LaunchRequest) -> Options:
    """Return the option that hands advantages of turns to slime.

    Raises:
        ConfigError: another function is named for it, or the estimator has no place for it.
    """
    if ADVANTAGES in request.names:
        raise ConfigError(f"{ADVANTAGES}: `turn_advantages` sets it. Remove one of them")
    estimator = trainer_defaults.estimator_of(request)
    if estimator not in TURN_ESTIMATORS:
        known = ", ".join(TURN_ESTIMATORS)
        raise ConfigError(f"`turn_advantages` does not fit --advantage-estimator {estimator}. Use one of {known}")
    return {ADVANTAGES: TURN_ADVANTAGES}


_TRAINER = launch.ClusterTrainer(name="slime", command_of=_command_of)
plan, train = _TRAINER.plan, _TRAINER.train
