"""From the configuration to the options that all trainers of a cluster have. No process is asked.

The defaults are those of the cookbook's scripts. It must not know a trainer: what only one has (its hooks, the shape of
its models, its training backend) the adapter adds. Every other option passes through by its own name (`trainer.flags`,
or after `--`) and takes the place of what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orl_core.config import RunConfig, TrainerConfig
from orl_core.credentials import refuse_on_command_line
from orl_core.errors import ConfigError
from orl_rollout.secrets.secrets import refuse_in_words

from orl_cluster.launch.argv import Options, merge, number, option_name, value_of, without
from orl_cluster.launch.layout import Files, Layout, Request

MODEL = "Qwen/Qwen3-30B-A3B"
GROUP_SIZE, GROUPS, STEPS = 16, 32, 3000
RESPONSE_TOKENS, TOKENS_PER_GPU = 4096, 8192
LEARNING_RATE, TEMPERATURE, SAVE_INTERVAL = 1e-5, 1.0, 10
TRACKER = "latest_checkpointed_iteration.txt"  # beside a checkpoint: its step, or `release`
CUSTOM_CONFIG = "--custom-config-path"
CONTEXT_PARALLEL, PER_GPU = "--context-parallel-size", "--max-tokens-per-gpu"

# Options that orl must own, and what sets them. It counts the GPUs: for those that are not there Ray waits for ever.
OWNED = {
    "--actor-num-nodes": "--actor-nodes",
    "--actor-num-gpus-per-node": "--actor-gpus where GPUs are divided, else --num-gpus",
    "--num-gpus-per-node": "--num-gpus",
    "--rollout-num-gpus": "--rollout-gpus",
    "--colocate": "leaving --async, --actor-gpus and --rollout-gpus out, and taken away by them",
    "--custom-generate-function-path": "orl's own rollout",
    "--prompt-data": "--task-data",
    "--group-rm": "`group_reward:` in the configuration, which scores groups after all rollouts",
}
# Options of older scripts that no trainer has, and what replaces them.
GONE = {
    "--wandb-run-name": "--wandb-run NAME before `--`",
    "--wandb-key": "the variable WANDB_API_KEY: on a command line everyone could read it",
}
NORMALISED_ADVANTAGES = frozenset({"reinforce_plus_plus", "reinforce_plus_plus_baseline"})


def assemble(request: Request, ours: Options) -> list[str]:
    """The options: ours, then the file's flags, then what stood after `--`, each without what a later one says.

    Raises:
        ConfigError: a word that is no option, one that holds a secret, or sizes that do not fit together.
    """
    _check_words(request.extra)
    refuse_on_command_line(request.extra)
    flags = {name: value for name, value in request.trainer.flags.items() if option_name(name) != CUSTOM_CONFIG}
    argv = merge(ours, flags, without(request.extra, CUSTOM_CONFIG))
    refuse_in_words(request.config, argv)
    _check_batch(argv)
    return argv


def refuse_by_name(trainer: str, names: Sequence[str], gone: Mapping[str, str]) -> None:
    """Refuse what orl sets itself, and what `trainer` does not have: `gone`, an option and what replaces it.

    Raises:
        ConfigError: one of `names` is such an option.
    """
    for name in names:
        if name in OWNED:
            raise ConfigError(f"{name} is set by {OWNED[name]}")
        if name in gone:
            raise ConfigError(f"{trainer} has no {name}: what replaces it is {gone[name]}")


def cluster(layout: Layout) -> Options:
    """Nodes and GPUs."""
    return {
        "--actor-num-nodes": (str(layout.nodes),),
        "--actor-num-gpus-per-node": (str(layout.actor),),
        "--num-gpus-per-node": (str(layout.per_node),),
        "--rollout-num-gpus": (str(layout.rollout),),
        "--rollout-num-gpus-per-engine": (str(layout.tensor_parallel),),
        **({"--colocate": ()} if layout.colocate else {}),
    }


def checkpoints(trainer: TrainerConfig, files: Files, reference: str) -> Options:
    """The model, and what training goes on from: the run's own checkpoint, else a `reference` that training wrote.

    Where there is neither, trainers begin at step 0 with `--ref-load`; a converted model given as `--load` would count
    as step 0 done.
    """
    goes_on = _is_trained(Path(reference)) and not _is_trained(files.save)
    own = Path(trainer.load).expanduser().absolute() if trainer.load else files.save
    return {
        "--hf-checkpoint": (absolute(trainer.model or MODEL),),
        "--ref-load": (reference,),
        "--load": (reference if goes_on and not trainer.load else str(own),),
        "--save": (str(files.save),),
        "--save-interval": (str(trainer.save_interval or SAVE_INTERVAL),),
    }


def _is_trained(folder: Path) -> bool:
    """Whether training wrote the checkpoint in `folder`: it names its step, which a converted model does not."""
    tracker = folder / TRACKER
    return tracker.is_file() and tracker.read_text(encoding="utf-8").strip().isdecimal()


def absolute(name: str) -> str:
    """A path as a trainer's workers understand it, whatever folder they work in; a hub's name stays as it is."""
    local = name.startswith((".", "~", "/")) or Path(name).exists()
    return str(Path(name).expanduser().absolute()) if local else name


def data(config: RunConfig, files: Files, hooks: Options) -> Options:
    """Tasks to train on and to hold out, and the adapter's `hooks`."""
    options = {
        "--prompt-data": (str(files.task_data),),
        "--input-key": ("prompt",),
        "--label-key": ("label",),
        "--rollout-shuffle": (),
        CUSTOM_CONFIG: (str(files.custom_config),),
        **hooks,
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


def rollouts(request: Request, *, parallel: bool) -> Options:
    """Batches and budgets. `parallel` says whether the training backend can split a sequence over GPUs.

    Raises:
        ConfigError: `--max-context-len` asks for more than the training GPUs take.
    """
    trainer = request.trainer
    groups, members = trainer.rollout_batch_size or GROUPS, trainer.n_samples or GROUP_SIZE
    return {
        "--num-rollout": (str(trainer.num_rollout or STEPS),),
        "--rollout-batch-size": (str(groups),),
        "--n-samples-per-prompt": (str(members),),
        "--num-steps-per-rollout": ("1",),
        "--global-batch-size": (str(groups * members),),
        "--rollout-max-response-len": (str(trainer.max_response_len or RESPONSE_TOKENS),),
        "--rollout-max-context-len": (str(_context_tokens(request, parallel=parallel)),),
        "--rollout-temperature": (str(trainer.temperature or TEMPERATURE),),
        "--rollout-seed": (str(trainer.seed),),
        "--sglang-mem-fraction-static": ("0.7",),
    }


def _context_tokens(request: Request, *, parallel: bool) -> int:
    """How long prompt and response may be together: as configured, within what the training GPUs take."""
    trainer = request.trainer
    gpus = number(request.value(CONTEXT_PARALLEL), CONTEXT_PARALLEL) or 1 if parallel else 1
    asked = number(request.value(PER_GPU), PER_GPU) or trainer.max_tokens_per_gpu
    taken = (asked or TOKENS_PER_GPU) * gpus
    if (trainer.max_context_len or 0) > taken:
        beside = f", or {CONTEXT_PARALLEL} after `--`" if parallel else ""
        raise ConfigError(
            f"--max-context-len {trainer.max_context_len} is more than the training GPUs take: {PER_GPU} "
            f"{taken // gpus} x context parallel {gpus} is {taken} ids; raise {PER_GPU}{beside}"
        )
    return trainer.max_context_len or min(request.config.rollout.context_tokens, taken)


def learning(trainer: TrainerConfig) -> Options:
    """Estimator and optimizer. The importance of old samples is corrected where rollouts can be off-policy."""
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
    }


def packing(trainer: TrainerConfig) -> Options:
    """Sequences packed into micro-batches by their length."""
    return {
        "--use-dynamic-batch-size": (),
        PER_GPU: (str(trainer.max_tokens_per_gpu or TOKENS_PER_GPU),),
    }


def megatron(trainer: TrainerConfig, layout: Layout) -> Options:
    """What Megatron, the training backend that several trainers have, is told."""
    return {
        "--tensor-model-parallel-size": (str(layout.tensor_parallel),),
        "--pipeline-model-parallel-size": ("1",),
        CONTEXT_PARALLEL: ("1",),
        "--recompute-granularity": ("full",),
        "--recompute-method": ("uniform",),
        "--recompute-num-layers": ("1",),
        **packing(trainer),
        "--attention-dropout": ("0.0",),
        "--hidden-dropout": ("0.0",),
        "--accumulate-allreduce-grads-in-fp32": (),
        "--attention-softmax-in-fp32": (),
        "--attention-backend": ("flash",),
    }


def tracking(trainer: TrainerConfig, project: str) -> Options:
    """Weights & Biases; the group is required there, and names the run."""
    project = trainer.wandb_project or project
    return {
        "--use-wandb": (),
        "--wandb-project": (project,),
        "--wandb-group": (trainer.wandb_run or project,),
        **({"--disable-wandb-random-suffix": ()} if trainer.wandb_run else {}),
        **({"--wandb-mode": (trainer.wandb_mode,)} if trainer.wandb_mode else {}),
    }


def _check_words(extra: Sequence[str]) -> None:
    """A parser that passes over what it does not know passes over these too."""
    for place, word in enumerate(extra):
        dashed = word.startswith("-") and word[1:2].isalpha()
        if dashed or word == "--" or (place == 0 and not word.startswith("--")):
            meant = f"; did you mean -{word}?" if dashed else ""
            raise ConfigError(f"{word}: expected an option of the trainer, such as --eps-clip 0.2, after `--`{meant}")


def _check_batch(argv: Sequence[str]) -> None:
    """A step trains `global-batch-size` rollouts; the three numbers that say so must agree."""

    def size(name: str) -> int:
        return number(value_of(argv, name), name) or 1

    samples = size("--rollout-batch-size") * size("--n-samples-per-prompt")
    steps, batch = size("--num-steps-per-rollout"), size("--global-batch-size")
    if batch * steps != samples:
        raise ConfigError(
            f"--global-batch-size {batch} x --num-steps-per-rollout {steps} is not the {samples} rollouts of a batch "
            "(--rollout-batch-size x --n-samples)"
        )
