"""The options of slime and miles that orl writes, those that it refuses, and what replaces unknown ones.

`options` has the defaults. The module must not know a trainer: the adapter adds the shape of its
models and its training backend. Every other option passes through by its own name (`trainer.flags`, or after `--`) and
replaces the value given here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from orl_core.errors import ConfigError
from orl_core.estimators import OPTION
from orl_rollout.edge.secrets import refuse_in_words
from orl_rollout.run_folder.checkpoint import trained_number

from orl_cluster.launch.command.command import LaunchRequest, eval_options
from orl_cluster.launch.command.engine_weights import comparable_at_start
from orl_cluster.launch.machine.probe import DROPS, FORWARDS
from orl_cluster.launch.options import (
    CHECK,
    CONTEXT,
    CONTEXT_PARALLEL,
    CUSTOM_CONFIG,
    CUSTOM_REWARD,
    ENGINE_GPUS,
    ENGINE_SHARE,
    GENERATE,
    LORA,
    PARTIAL,
    PER_GPU,
    PIPELINE_PARALLEL,
    REPLAY,
    ROUTER,
    RUN_NAME,
    SEQUENCE_PARALLEL,
    TENSOR_PARALLEL,
    Options,
    merge,
    number,
    option_name,
    value_of,
    without,
)

MODEL = "Qwen/Qwen3-30B-A3B"
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # Megatron overlaps its communication only with one queue

# Options that orl must own, and what sets them. It counts the GPUs: for those that are not there Ray waits for ever.
OWNED = {
    "--actor-num-nodes": "--actor-nodes",
    "--actor-num-gpus-per-node": "--actor-gpus where GPUs are divided, else --num-gpus",
    "--num-gpus-per-node": "--num-gpus",
    "--rollout-num-gpus": "--rollout-gpus",
    "--colocate": "orl: on by default, off when --async, --actor-gpus or --rollout-gpus is given",
    GENERATE: "orl's own rollout, unless all rows are plain (`environments: {}`); --agent plays tasks in your own way",
    "--prompt-data": "--task-data",
    "--rollout-max-response-len": "`rollout.turn_tokens`, or --max-response-len before `--`",
    "--rollout-max-context-len": "`rollout.context_tokens`, or --max-context-len before `--`",
    "--group-rm": "`group_reward:` in the configuration, which scores groups after all rollouts",
}
# Options that orl does not count or serve, and why.
REFUSED = {
    **dict.fromkeys(
        ("--rollout-external", "--rollout-external-engine-addrs"),
        "orl counts engines on the GPUs of the job alone. Leave it out, and give --actor-gpus and --rollout-gpus for "
        "engines apart, on other nodes of a Ray cluster too",
    ),
    "--eval-num-gpus": "orl counts no GPUs for evaluation alone. Leave it out: the engines of training evaluate",
    "--multi-lora-n-adapters": "orl trains one adapter. Give --lora-rank alone",
    "--use-session-server": "no agent of orl asks it. Leave it out: orl's gateway serves --agent",
}
# Options of older scripts and of the other training backend, and what follows them.
_SUCCESSORS = {
    "--async-buffer-size": "--update-weights-interval; rollouts are one batch ahead of training",
    "--max-turns": "`environments.NAME.max_turns` in the configuration",
    RUN_NAME: "--wandb-run NAME before `--`",
}
SUCCESSORS = {
    "megatron": _SUCCESSORS
    | {
        "--gradient-checkpointing": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1, "
        "which are on already",
        "--attn-implementation": "--attention-backend",
        "--fsdp-cpu-offload": "--optimizer-cpu-offload",
    },
    "fsdp": _SUCCESSORS
    | dict.fromkeys(
        ("--recompute-granularity", "--recompute-method", "--recompute-num-layers"),
        "--gradient-checkpointing, which is on already",
    )
    | dict.fromkeys((TENSOR_PARALLEL, PIPELINE_PARALLEL), "--train-backend megatron: FSDP splits no layer")
    | {"--attention-backend": "--attn-implementation", "--optimizer-cpu-offload": "--fsdp-cpu-offload"},
}
# Options with which routing is not replayed: a function that may not read it, another replay, an untried adapter.
NOT_REPLAYED = (GENERATE, "--use-routing-replay", LORA)
UNREPLAYED = "the model is a mixture of experts, and training does not replay their choice"


def assemble(request: LaunchRequest, ours: Options) -> list[str]:
    """Return the arguments: ours, then the file's flags, then those after `--`, each replaced by a later one.

    Raises:
        ConfigError: a word that is no option, one that holds a secret, or sizes that do not fit together.
    """
    extra = request.run.extra
    check_words(extra)
    flags = {name: value for name, value in request.trainer.own_flags.items() if option_name(name) != CUSTOM_CONFIG}
    extra = without(extra, CUSTOM_CONFIG)
    argv = merge(ours, flags, extra)
    if comparable_at_start(argv):
        argv = merge({**ours, CHECK: True}, flags, extra)
    refuse_in_words(request.run.config, argv)
    _check_batch(argv, request.layout.actor * request.layout.nodes)
    return argv


def refuse_by_name(names: Sequence[str], refused: Mapping[str, str] = REFUSED, *, plain: bool = False) -> None:
    """Refuse options that orl sets itself, and those that are `refused`, with the reason.

    A run of `plain` rows alone may have a rollout function of its user's.
    """
    for name in names:
        if name in OWNED and not (plain and name == GENERATE):
            raise ConfigError(f"{name} is set by {OWNED[name]}")
        if name in refused:
            raise ConfigError(f"{name}: {refused[name]}")


def options(request: LaunchRequest, reference: str | None, training: Options) -> Options:
    """Return the options of a run. `training` are those of the training backend.

    `reference` is the checkpoint that the run begins with.
    """
    layout = request.layout
    return {
        "--actor-num-nodes": layout.nodes,
        "--actor-num-gpus-per-node": layout.actor,
        "--num-gpus-per-node": layout.per_node,
        "--rollout-num-gpus": layout.rollout,
        ENGINE_GPUS: layout.tensor_parallel,
        "--use-fault-tolerance": True,
        "--colocate": layout.colocate,
        **_checkpoints(request, absolute(reference or request.trainer.model or MODEL)),
        **_data(request),
        **_rollouts(request),
        **_learning(request),
        **training,
        **_tracking(request),
    }


def _checkpoints(request: LaunchRequest, reference: str) -> Options:
    """Return the options of the model and of the first checkpoint: the run's own, else a trained `reference`.

    Where there is neither, trainers begin at step 0 with `--ref-load`; a converted model given as `--load` would count
    as step 0 done.
    """
    trainer, save = request.trainer, request.save
    own = Path(trainer.load).expanduser().absolute() if trainer.load else save
    goes_on = not trainer.load and trained_number(Path(reference)) is not None and trained_number(save) is None
    return {
        "--hf-checkpoint": absolute(trainer.model or MODEL),
        "--ref-load": reference,
        "--load": reference if goes_on else own,
        "--save": save,
        "--save-interval": trainer.save_interval,
    }


def absolute(name: str) -> str:
    """Return a path that holds in any working folder. A hub's name stays as it is."""
    local = name.startswith((".", "~", "/")) or Path(name).exists()
    return str(Path(name).expanduser().absolute()) if local else name


def _data(request: LaunchRequest) -> Options:
    """Return the options of the tasks to train on and to hold out, and of the adapter's hooks."""
    run, evaluation, adapter = request.run, request.run.config.eval, f"orl_{request.installation.trainer}"
    options: Options = {
        "--prompt-data": run.task_data.absolute(),
        "--input-key": "prompt",
        "--label-key": "label",
        "--rollout-shuffle": True,
        CUSTOM_CONFIG: request.custom_config,
        GENERATE: f"{adapter}.generate.generate",
        CUSTOM_REWARD: f"{adapter}.hooks.reward",
        "--custom-reward-post-process-path": f"{adapter}.hooks.post_process",
        "--custom-rollout-log-function-path": f"{adapter}.hooks.log_rollout",
        "--custom-eval-rollout-log-function-path": f"{adapter}.hooks.log_eval",
    }
    if run.eval_data is None:
        return options
    for name in ("--reward-key", "--eval-reward-key"):
        if key := request.value(name):
            raise ConfigError(f"{name} {key}: the reward of a held-out task is one number and has no key. Remove it")
    return {
        **options,
        "--eval-prompt-data": eval_options(run),
        "--eval-interval": evaluation.interval or request.trainer.num_rollout,
        "--n-samples-per-eval-prompt": evaluation.samples,
        "--eval-temperature": evaluation.temperature,
        "--eval-top-p": evaluation.top_p,
    }


def _rollouts(request: LaunchRequest) -> Options:
    trainer = request.trainer
    epochs = request.value("--num-epoch")
    if epochs and (request.run.config.trainer.num_rollout or request.value("--num-rollout")):
        raise ConfigError(f"--num-epoch {epochs}: with --num-rollout, trainers ignore it. Remove one of them")
    return {
        "--num-rollout": None if epochs else trainer.num_rollout,
        "--rollout-batch-size": trainer.rollout_batch_size,
        "--n-samples-per-prompt": trainer.n_samples,
        "--num-steps-per-rollout": 1,
        "--global-batch-size": batch_size(request),
        "--rollout-max-response-len": request.run.config.rollout.turn_tokens,
        CONTEXT: request.run.config.rollout.context_tokens,
        "--rollout-temperature": trainer.temperature,
        "--rollout-seed": trainer.seed,
        ENGINE_SHARE: 0.7,
    }


def batch_size(request: LaunchRequest) -> int:
    """Return the number of rollouts of an update: as given, else those of a step, divided by its updates."""
    trainer, words = request.trainer, request.words
    groups = number(words, "--rollout-batch-size", trainer.rollout_batch_size or 1)
    members = number(words, "--n-samples-per-prompt", trainer.n_samples or 1)
    return number(words, "--global-batch-size", groups * members // number(words, "--num-steps-per-rollout"))


def _learning(request: LaunchRequest) -> Options:
    """Return estimator and optimizer. Importance is corrected where rollouts can be off-policy.

    Those of a mixture always are: where training rounds otherwise than the engine, its router chooses other experts.
    """
    trainer, estimator = request.trainer, request.estimator
    old = request.cluster.asynchronous or request.value(PARTIAL) is not None or request.mixture
    return {
        OPTION: estimator.name,
        "--eps-clip": 0.2,
        "--normalize-advantages": estimator.whiten,
        "--use-tis": old and request.value("--use-rollout-logprobs") is None,  # the other correction, not with it
        "--optimizer": "adam",
        "--lr": trainer.lr,
        "--lr-decay-style": trainer.lr_decay_style,
        "--weight-decay": trainer.weight_decay,
        "--adam-beta1": trainer.adam_beta1,
        "--adam-beta2": trainer.adam_beta2,
        "--adam-eps": trainer.adam_eps or "1e-8",
        "--seed": trainer.seed + 1,  # Megatron takes no 0
    }


def packing(request: LaunchRequest) -> Options:
    """Return the options that pack sequences into micro-batches by their length; none if the user gives their size."""
    if request.value("--micro-batch-size"):  # trainers ignore it if they pack
        return {}
    return {"--use-dynamic-batch-size": True, PER_GPU: request.trainer.max_tokens_per_gpu}


def megatron(request: LaunchRequest, *, replayed: bool) -> Options:
    """Return the options of Megatron, the training backend that several trainers have.

    A mixture's routing is `replayed`, see `replays`. Megatron asks for sequence parallelism if tensor parallelism
    splits a mixture.
    """
    tensor = number(request.words, TENSOR_PARALLEL, request.layout.tensor_parallel)
    return {
        TENSOR_PARALLEL: request.layout.tensor_parallel,
        PIPELINE_PARALLEL: 1,
        CONTEXT_PARALLEL: 1,
        SEQUENCE_PARALLEL: request.mixture and tensor > 1,
        REPLAY: replayed,
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": 1,
        **packing(request),
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--accumulate-allreduce-grads-in-fp32": True,
        "--attention-softmax-in-fp32": True,
        "--attention-backend": "flash",
    }


def replays(request: LaunchRequest, *, able: bool, routers: Sequence[str] = ()) -> tuple[bool, tuple[str, ...]]:
    """Tell whether a mixture trains with the experts that the engine chose, with notes for its user.

    `able` tells whether the trainer can. The installed router has to forward the request for it, if no option of
    `routers`, or ROUTER, names another.
    """
    wanted = request.mixture and able and all(request.value(name) is None for name in NOT_REPLAYED)
    other = any(request.value(name) is not None for name in (ROUTER, *routers))
    installation = request.installation
    forwards = other or bool(installation.missing) or FORWARDS in installation.findings.features
    silent = not wanted or forwards or REPLAY in request.names
    return wanted and forwards, () if silent else (f"{UNREPLAYED}: {DROPS}",)


def _tracking(request: LaunchRequest) -> Options:
    """Return the options of Weights & Biases, where the group names the run, and of TensorBoard."""
    run, trainer, mode = request.run, request.trainer, request.tracking.mode
    project = trainer.wandb_project or f"{request.installation.trainer}-openreward"
    folder = {"--use-tensorboard": True, "--tb-project-name": project, "--tb-experiment-name": run.folder.name}
    wandb = {
        "--use-wandb": True,
        "--wandb-project": project,
        "--wandb-group": trainer.wandb_run or run.folder.name,
        "--disable-wandb-random-suffix": True,
        "--wandb-mode": "offline" if mode == "offline" else trainer.wandb_mode,
        "--wandb-dir": str(run.folder.absolute()) if mode == "offline" else None,
    }
    return {**(wandb if mode else {}), **(folder if trainer.tensorboard else {})}


def _check_batch(argv: Sequence[str], gpus: int) -> None:
    """Check that an update has a rollout for each data-parallel rank of Megatron."""
    batch = number(argv, "--global-batch-size")
    ranks = gpus // math.prod(number(argv, name) for name in (TENSOR_PARALLEL, PIPELINE_PARALLEL, CONTEXT_PARALLEL))
    if value_of(argv, TENSOR_PARALLEL) and batch < ranks:
        raise ConfigError(
            f"--global-batch-size {batch}: a step trains fewer rollouts than the {ranks} data-parallel ranks of "
            f"{gpus} training GPUs; raise --n-samples or --rollout-batch-size, or --tp"
        )


def check_words(extra: Sequence[str]) -> None:
    """Refuse words that are no options: a parser that ignores unknown options ignores these too."""
    for index, word in enumerate(extra):
        dashed = word.startswith("-") and word[1:2].isalpha()
        if dashed or word == "--" or (index == 0 and not word.startswith("--")):
            meant = f"; did you mean -{word}?" if dashed else ""
            raise ConfigError(f"{word}: expected an option of the trainer, such as --eps-clip 0.2, after `--`{meant}")


def critic_folder(checkpoint: str) -> Path:
    """Return the folder of the critic that belongs to the actor's `checkpoint`."""
    actor = Path(checkpoint).absolute()
    return actor.with_name(f"{actor.name}_critic")


def critic_load(argv: Sequence[str]) -> Path | None:
    """Return the critic's checkpoint to resume from; None for a run that starts at step 0.

    Raises:
        ConfigError: the actor is resumed, and its critic is not there.
    """
    actor = value_of(argv, "--load") or ""
    if not actor or trained_number(Path(actor)) is None:
        return None
    critic = critic_folder(actor)
    if trained_number(critic) is None:
        raise ConfigError(
            f"--load {actor}: PPO continues from an actor and its critic, and no critic is in {critic}; "
            "train with another --advantage-estimator, or start a new run from --megatron-ckpt"
        )
    return critic
