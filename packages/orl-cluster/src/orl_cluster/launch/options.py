"""Options of the trainers on a cluster: the section `cluster`, defaults such as `lr`, names, and command lines of them.

Importing it is fast. The defaults are those of the cookbook's scripts. slime and miles have the same name for the same
option, and orl writes each name here alone.

A command line comes from three sources: our options, the flags of the YAML file, and the words after `--`. Options that
are not named here pass through unchanged. A later source replaces an earlier one by the option's name, so that a flag
in the file and the same flag on the command line give one command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from orl_core.config import TrainerConfig
from orl_core.config.checked import Checked
from orl_core.errors import ConfigError
from orl_core.limits import NonNegative, Positive, Seconds

CLUSTER = "cluster"
# Options of the trainers that orl reads in several places.
CONTEXT, PER_GPU = "--rollout-max-context-len", "--max-tokens-per-gpu"
TENSOR_PARALLEL, PIPELINE_PARALLEL = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
CONTEXT_PARALLEL, SEQUENCE_PARALLEL = "--context-parallel-size", "--sequence-parallel"
ENGINE_SHARE, ENGINE_GPUS = "--sglang-mem-fraction-static", "--rollout-num-gpus-per-engine"
CUSTOM_CONFIG, CUSTOM_REWARD, GENERATE = "--custom-config-path", "--custom-rm-path", "--custom-generate-function-path"
CHECK = "--check-weight-update-equal"  # the first sync must leave the engines what they had loaded
REPLAY, ROUTER = "--use-rollout-routing-replay", "--sglang-router-ip"
PARTIAL, LORA = "--partial-rollout", "--lora-rank"
RUN_NAME = "--wandb-run-name"
STALL_MARGIN = 300.0  # seconds in which a healthy trainer neither plays nor waits for a server
DEFAULTS: Mapping[str, Any] = {
    "lr": 1e-5,
    "lr_decay_style": "constant",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "advantage_estimator": "grpo",
    "n_samples": 16,
    "rollout_batch_size": 32,
    "num_rollout": 3000,
    "temperature": 1.0,
    "max_tokens_per_gpu": 8192,
    "save_interval": 10,
}


class ClusterOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options that trainers on a cluster share; null leaves the choice to the trainer."""

    asynchronous: Annotated[
        bool, Meta(description="Generate the next batch while training on this one, on separate GPUs.")
    ] = field(default=False, name="async")
    num_gpus: Annotated[
        Positive | None, Meta(description="GPUs of each node (default: all that are found; for a conversion, one).")
    ] = None
    actor_gpus: Annotated[Positive | None, Meta(description="Training GPUs of a node (default: all, shared).")] = None
    rollout_gpus: Annotated[Positive | None, Meta(description="GPUs of the engines (default: all, shared).")] = None
    actor_nodes: Annotated[Positive | None, Meta(description="Nodes that train (default: 1).")] = None
    tp: Annotated[Positive | None, Meta(description="Tensor-parallel size.")] = None
    train_backend: Annotated[
        Literal["megatron", "fsdp"] | None, Meta(description="Training backend, if the trainer has a choice.")
    ] = None
    save: Annotated[
        str | None,
        Meta(description="Folder for checkpoints, and to resume from (default: in the run's own folder)."),
    ] = None
    megatron_ckpt: Annotated[str | None, Meta(description="The model, converted for Megatron.")] = None
    model_args: Annotated[str | None, Meta(description="The trainer's file with the shape of the model.")] = None
    memory_retries: Annotated[
        NonNegative | None,
        Meta(
            description="Most restarts of a run whose GPU memory ran out (default: 3). Each lowers one of: tokens of a "
            "GPU, context, the engines' share."
        ),
    ] = None
    stall_timeout: Annotated[
        Seconds,
        Meta(description="Seconds without a step, an answered turn or a growing checkpoint that end the run."),
    ] = 3600.0
    megatron_path: Annotated[str | None, Meta(description="Checkout of Megatron-LM (default: the installed one).")] = (
        None
    )


class CheckoutOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name the checkout of this trainer."""

    path: Annotated[
        str | None,
        Meta(description="Checkout of the trainer (default: the installed one).", extra={"option": "{section}-path"}),
    ] = None


def cluster_of(trainer: TrainerConfig) -> ClusterOptions:
    """Return the options that trainers on a cluster share."""
    return trainer.section(CLUSTER, ClusterOptions)


_NAME = re.compile(r"(--)?[A-Za-z0-9][\w.-]*")
Value = str | float | Path | tuple[str | Path, ...] | None
Options = Mapping[str, Value]  # an option and its value: True for a switch, False or None for an option to leave out


def merge(ours: Options, flags: Options, extra: Sequence[str]) -> list[str]:
    """Return the arguments: ours, then the file's `flags`, then `extra`. A later one replaces an earlier one."""
    filed = {option_name(name): whole(value) for name, value in flags.items()}
    replaced = names_in(extra)
    options = [*((name, value) for name, value in ours.items() if name not in filed), *filed.items()]
    return [word for name, value in options if name not in replaced for word in _words(name, value)] + [*extra]


def _words(name: str, value: Value) -> list[str]:
    if value is None or value is False:
        return []
    values = () if value is True else value if isinstance(value, tuple) else (value,)
    return [name, *map(str, values)]


def option_name(name: str) -> str:
    """Return the option of a flag: `use-kl-loss`, `use_kl_loss` and `--use-kl-loss` are one."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"`trainer.flags` has `{name}`: expected a name, such as --lr, and after the colon its value")
    bare = name.removeprefix("--")
    return f"--{bare if name.startswith('--') else bare.replace('_', '-')}"


def whole(value: Value) -> Value:
    """Return a flag's value with the integer that YAML's reader made a float: 2.0 is 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def split_options(argv: Iterable[str]) -> list[list[str]]:
    """Return the words of each option in `argv`: its name, and the values that follow it."""
    split: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not split:
            split.append([])
        split[-1].append(word)
    return split


def shell_text(environment: Mapping[str, str], program: Sequence[str], argv: Sequence[str]) -> str:
    """Write a command for people and for a shell, one option a line, after the variables of its `environment`."""
    first = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    options = [f"    {shlex.join(option)}" for option in split_options(argv)]
    return " \\\n".join([*([first] if first else []), f"  {shlex.join(program)}", *options])


def names_in(argv: Iterable[str]) -> list[str]:
    """Return the names of the options in `argv`, in order."""
    return [word.partition("=")[0] for word in argv if word.startswith("--") and len(word) > 2]


def value_of(argv: Sequence[str], name: str) -> str | None:
    """Return the last value given to the option `name`; "" for a switch, None if it is not given."""
    last: str | None = None
    for first, *values in split_options(argv):
        option, equals, value = first.partition("=")
        if option == name:
            last = value if equals else next(iter(values), "")
    return last


def number(argv: Sequence[str], name: str, default: int = 1) -> int:
    """Return the whole number that the option `name` has; `default` if it is not given, or 0.

    Raises:
        ConfigError: it is no whole number.
    """
    value = value_of(argv, name)
    try:
        return int(value or 0) or default
    except ValueError:
        raise ConfigError(f"{name} {value}: expected a whole number") from None


def without(argv: Sequence[str], name: str) -> list[str]:
    """Return `argv` without the option `name` and its one value."""
    kept: list[str] = []
    for first, *values in split_options(argv):
        option, equals, _ = first.partition("=")
        kept += values[not equals :] if option == name else [first, *values]
    return kept
