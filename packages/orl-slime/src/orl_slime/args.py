"""From the configuration to slime's command line. No file is read, no process asked, nothing of slime imported.

The options that all trainers share have their place here, with the defaults of the cookbook's script; every other
option of slime, Megatron and SGLang passes through by its own name (`trainer.flags`, or after `--`) and takes the place
of what stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from orl_core.config import RunConfig, TrainerConfig
from orl_core.errors import ConfigError
from orl_rollout.cluster.argv import Options, merge, names_in, option_name, value_of, without

MODEL = "Qwen/Qwen3-30B-A3B"
GPUS, TENSOR_PARALLEL = 4, 4
GROUP_SIZE, GROUPS, STEPS = 16, 32, 3000
RESPONSE_TOKENS, TOKENS_PER_GPU = 4096, 8192
LEARNING_RATE, TEMPERATURE, SAVE_INTERVAL = 1e-5, 1.0, 10

# Options that orl must own, and what sets them.
OWNED = {
    "--custom-generate-function-path": "orl's own rollout",
    "--prompt-data": "--task-data",
    "--group-rm": "`group_reward:` in the configuration, which scores groups after all rollouts",
}
# Options that slime once had, and what replaces them.
GONE = {
    "--gradient-checkpointing": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1, "
    "which are on already",
    "--wandb-run-name": "--wandb-run NAME before `--`",
    "--wandb-key": "the variable WANDB_API_KEY: on a command line everyone could read it",
}
NORMALISED_ADVANTAGES = frozenset({"reinforce_plus_plus", "reinforce_plus_plus_baseline"})


class Files(Struct, frozen=True, kw_only=True):
    """Where the run's files are. `resume` says that `save` holds a checkpoint of this run already."""

    task_data: Path
    eval_data: Path | None
    custom_config: Path
    save: Path
    resume: bool = False


class Layout(Struct, frozen=True, kw_only=True):
    """How the GPUs are shared: `actor` and `rollout` GPUs of which `colocate` says whether they are the same."""

    nodes: int
    per_node: int
    actor: int
    rollout: int
    colocate: bool
    tensor_parallel: int

    @property
    def total(self) -> int:
        """The GPUs of all nodes together."""
        return self.actor * self.nodes + (0 if self.colocate else self.rollout)


def layout_of(config: TrainerConfig, found: int) -> Layout:
    """The layout that the options ask for, on a machine where `found` GPUs were found (0: not known).

    Raises:
        ConfigError: half a division into trainers and engines, or a tensor-parallel size that does not divide.
    """
    divided = config.actor_gpus is not None or config.rollout_gpus is not None or config.asynchronous
    nodes = config.actor_nodes or 1
    gpus = config.num_gpus or found or GPUS
    if divided and config.actor_gpus is None and config.rollout_gpus is None:
        raise ConfigError("--async trains and plays on GPUs of their own: give --actor-gpus and --rollout-gpus")
    if divided and (config.actor_gpus is None or config.rollout_gpus is None):
        raise ConfigError("--actor-gpus and --rollout-gpus divide the GPUs: give both, or neither to share them")
    actor = config.actor_gpus or gpus
    rollout = config.rollout_gpus or gpus * nodes
    tensor = config.tp or next(size for size in (TENSOR_PARALLEL, 2, 1) if actor % size == 0 and rollout % size == 0)
    if actor % tensor or rollout % tensor:
        raise ConfigError(f"--tp {tensor} does not divide {actor} training and {rollout} engine GPUs")
    per_node = config.num_gpus or (found or actor if divided else gpus)
    return Layout(
        nodes=nodes, per_node=per_node, actor=actor, rollout=rollout, colocate=not divided, tensor_parallel=tensor
    )


def arguments(
    config: RunConfig, files: Files, layout: Layout, *, model_args: Sequence[str], extra: Sequence[str], tracked: bool
) -> list[str]:
    """slime's arguments. `model_args` is the shape of the model; `tracked` says whether W&B is used.

    Raises:
        ConfigError: an option that orl owns or that slime no longer has, or sizes that do not fit together.
    """
    trainer = config.trainer
    if trainer.train_backend == "fsdp":
        raise ConfigError("--train-backend fsdp: slime trains with Megatron alone since 0.2.3; leave the option out")
    given = [*model_args, *extra]
    _refuse_by_name([*(option_name(name) for name in trainer.flags), *names_in(extra)])
    ours: Options = {
        **_cluster(layout),
        **_checkpoints(trainer, files),
        **_data(config, files),
        **_rollouts(config, layout, given),
        **_training(trainer, layout),
        **(_tracking(trainer) if tracked else {}),
    }
    flags = {name: value for name, value in trainer.flags.items() if option_name(name) != "--custom-config-path"}
    argv = [*model_args, *merge(ours, flags, without(extra, "--custom-config-path"))]
    _refuse_replay(argv)
    _check_batch(argv)
    return argv


def custom_config_of(config: RunConfig, extra: Sequence[str]) -> str | None:
    """The user's own file for `--custom-config-path`, which ours is merged with."""
    flags = {option_name(name): value for name, value in config.trainer.flags.items()}
    named = value_of(extra, "--custom-config-path") or flags.get("--custom-config-path")
    return str(named) if named else None


def _cluster(layout: Layout) -> Options:
    return {
        "--actor-num-nodes": (str(layout.nodes),),
        "--actor-num-gpus-per-node": (str(layout.actor),),
        "--num-gpus-per-node": (str(layout.per_node),),
        "--rollout-num-gpus": (str(layout.rollout),),
        "--rollout-num-gpus-per-engine": (str(layout.tensor_parallel),),
        **({"--colocate": ()} if layout.colocate else {}),
    }


def _checkpoints(trainer: TrainerConfig, files: Files) -> Options:
    model = absolute(trainer.model or MODEL)
    reference = absolute(trainer.megatron_ckpt or model)
    load = absolute(trainer.load or (str(files.save) if files.resume else reference))
    return {
        "--hf-checkpoint": (model,),
        "--ref-load": (reference,),
        "--load": (load,),
        "--save": (str(files.save),),
        "--save-interval": (str(trainer.save_interval or SAVE_INTERVAL),),
    }


def absolute(name: str) -> str:
    """A path as slime's workers understand it, whatever folder they work in; a hub's name stays as it is."""
    local = name.startswith((".", "~", "/")) or Path(name).exists()
    return str(Path(name).expanduser().absolute()) if local else name


def _data(config: RunConfig, files: Files) -> Options:
    options = {
        "--prompt-data": (str(files.task_data),),
        "--input-key": ("prompt",),
        "--label-key": ("label",),
        "--rollout-shuffle": (),
        "--custom-config-path": (str(files.custom_config),),
        "--custom-generate-function-path": ("orl_slime.generate.generate",),
        "--custom-rm-path": ("orl_slime.reward.reward",),
        "--custom-reward-post-process-path": ("orl_slime.reward.post_process",),
        "--custom-rollout-log-function-path": ("orl_slime.log.log_rollout",),
        "--custom-eval-rollout-log-function-path": ("orl_slime.log.log_eval",),
    }
    if files.eval_data is not None:
        steps = config.trainer.num_rollout or STEPS
        options |= {
            "--eval-prompt-data": ("held_out", str(files.eval_data)),
            "--eval-interval": (str(config.eval.interval or steps),),
            "--n-samples-per-eval-prompt": (str(config.eval.samples),),
            "--eval-temperature": (str(config.eval.temperature),),
            "--eval-top-p": (str(config.eval.top_p),),
        }
    return options


def _rollouts(config: RunConfig, layout: Layout, given: Sequence[str]) -> Options:
    trainer = config.trainer
    groups, members = trainer.rollout_batch_size or GROUPS, trainer.n_samples or GROUP_SIZE
    return {
        "--num-rollout": (str(trainer.num_rollout or STEPS),),
        "--rollout-batch-size": (str(groups),),
        "--n-samples-per-prompt": (str(members),),
        "--num-steps-per-rollout": ("1",),
        "--global-batch-size": (str(groups * members),),
        "--rollout-max-response-len": (str(trainer.max_response_len or RESPONSE_TOKENS),),
        "--rollout-max-context-len": (str(context_tokens(config, given)),),
        "--rollout-temperature": (str(trainer.temperature or TEMPERATURE),),
        "--rollout-seed": (str(trainer.seed),),
        "--sglang-mem-fraction-static": ("0.7",),
    }


def context_tokens(config: RunConfig, given: Sequence[str]) -> int:
    """How long prompt and response may be together: as configured, within what the training GPUs take.

    Raises:
        ConfigError: `--max-context-len` asks for more than they take.
    """
    trainer = config.trainer
    parallel = int(value_of(given, "--context-parallel-size") or trainer.flags.get("--context-parallel-size") or 1)
    taken = (trainer.max_tokens_per_gpu or TOKENS_PER_GPU) * parallel
    if (trainer.max_context_len or 0) > taken:
        raise ConfigError(
            f"--max-context-len {trainer.max_context_len} is more than the training GPUs take: --max-tokens-per-gpu "
            f"{taken // parallel} x context parallel {parallel} is {taken} ids; raise --max-tokens-per-gpu, or "
            "--context-parallel-size after `--`"
        )
    return trainer.max_context_len or min(config.rollout.context_tokens, taken)


def _training(trainer: TrainerConfig, layout: Layout) -> Options:
    estimator = trainer.advantage_estimator or "grpo"
    return {
        "--advantage-estimator": (estimator,),
        "--eps-clip": ("0.2",),
        **({"--normalize-advantages": ()} if estimator in NORMALISED_ADVANTAGES else {}),
        **({"--use-tis": ()} if trainer.asynchronous else {}),
        "--optimizer": ("adam",),
        "--lr": (f"{trainer.lr or LEARNING_RATE:g}",),
        "--lr-decay-style": ("constant",),
        "--weight-decay": ("0.0",),
        "--adam-beta1": ("0.9",),
        "--adam-beta2": ("0.999",),
        "--adam-eps": ("1e-8",),
        "--seed": (str(trainer.seed or 1234),),
        "--tensor-model-parallel-size": (str(layout.tensor_parallel),),
        "--pipeline-model-parallel-size": ("1",),
        "--context-parallel-size": ("1",),
        "--recompute-granularity": ("full",),
        "--recompute-method": ("uniform",),
        "--recompute-num-layers": ("1",),
        "--use-dynamic-batch-size": (),
        "--max-tokens-per-gpu": (str(trainer.max_tokens_per_gpu or TOKENS_PER_GPU),),
        "--attention-dropout": ("0.0",),
        "--hidden-dropout": ("0.0",),
        "--accumulate-allreduce-grads-in-fp32": (),
        "--attention-softmax-in-fp32": (),
        "--attention-backend": ("flash",),
    }


def _tracking(trainer: TrainerConfig) -> Options:
    project = trainer.wandb_project or "slime-openreward"
    return {
        "--use-wandb": (),
        "--wandb-project": (project,),
        "--wandb-group": (trainer.wandb_run or project,),
        **({"--disable-wandb-random-suffix": ()} if trainer.wandb_run else {}),
        **({"--wandb-mode": (trainer.wandb_mode,)} if trainer.wandb_mode else {}),
    }


def _refuse_by_name(names: Sequence[str]) -> None:
    for name in names:
        if name in OWNED:
            raise ConfigError(f"{name} is set by {OWNED[name]}")
        if name in GONE:
            raise ConfigError(f"slime has no {name}: what replaces it is {GONE[name]}")


def _refuse_replay(argv: Sequence[str]) -> None:
    """What slime replays in training has to be in every sample, and orl's samples do not carry it yet."""
    if "--use-rollout-routing-replay" in names_in(argv):
        raise ConfigError("--use-rollout-routing-replay: orl's samples do not carry routed experts yet")
    if float(value_of(argv, "--rollout-top-p") or 1) != 1:
        raise ConfigError("--rollout-top-p: slime replays the nucleus, which orl's samples do not carry yet; use 1")


def _check_batch(argv: Sequence[str]) -> None:
    """slime trains `global-batch-size` rollouts a step; the three numbers that say so must agree."""

    def number(name: str) -> int:
        return int(value_of(argv, name) or 1)

    rollouts = number("--rollout-batch-size") * number("--n-samples-per-prompt")
    steps, batch = number("--num-steps-per-rollout"), number("--global-batch-size")
    if batch * steps != rollouts:
        raise ConfigError(
            f"--global-batch-size {batch} x --num-steps-per-rollout {steps} is not the {rollouts} rollouts of a batch "
            "(--rollout-batch-size x --n-samples)"
        )
