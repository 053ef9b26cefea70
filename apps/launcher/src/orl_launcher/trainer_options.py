"""The options of `orl train` that become overrides of `trainer` in the configuration.

They are derived from the fields of TrainerConfig: an option is a field with dashes for underscores, its values are
checked where all of the configuration is. Trainers' own flags are not mirrored here, they stand after `--`.
"""

from __future__ import annotations

import argparse
import json
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import msgspec
from orl_core.config import TrainerConfig

# One line for each option: how the help names its value, and what it is.
MEANINGS: dict[str, tuple[str, str]] = {
    "model": ("NAME", "a checkpoint's folder, a hub's name, or playground/GuessNumber: a tiny model made here"),
    "lr": ("RATE", "learning rate"),
    "n_samples": ("N", "rollouts of each task: a group"),
    "rollout_batch_size": ("N", "tasks of one step"),
    "num_rollout": ("N", "steps of the whole run"),
    "max_response_len": ("N", "ids that a rollout may add to its prompt"),
    "max_context_len": ("N", "ids of prompt and response together"),
    "max_tokens_per_gpu": ("N", "ids of one GPU's micro-batch"),
    "temperature": ("T", "sampling temperature of training rollouts"),
    "async": ("", "play the next batch while training on this one, on GPUs of their own"),
    "num_gpus": ("N", "GPUs of a node"),
    "actor_gpus": ("N", "GPUs of a node that train"),
    "rollout_gpus": ("N", "GPUs that serve the engines"),
    "actor_nodes": ("N", "nodes that train"),
    "tp": ("N", "tensor-parallel size"),
    "train_backend": ("NAME", "megatron or fsdp, where the trainer has a choice"),
    "advantage_estimator": ("NAME", "such as grpo, gspo, reinforce_plus_plus"),
    "load": ("PATH", "checkpoint to go on from"),
    "save": ("PATH", "where checkpoints go"),
    "save_interval": ("N", "steps between checkpoints"),
    "megatron_ckpt": ("PATH", "the model converted for Megatron"),
    "model_args": ("PATH", "the trainer's file with the model's shape"),
    "task_data": ("FILE", "tasks.jsonl of orl prepare (default: every task; `weight` counts in prepare --max-tasks)"),
    "wandb_project": ("NAME", "Weights & Biases project"),
    "wandb_run": ("NAME", "Weights & Biases run"),
    "wandb_mode": ("MODE", "online, offline or disabled"),
    "seed": ("N", "seed of tasks, weights and sampling"),
}
BESIDES = ("backend", "flags")  # fields that are no option: the positional argument, and what stands after `--`


def add_trainer_options(parser: argparse.ArgumentParser) -> None:
    """Add one option for each field of TrainerConfig."""
    group = parser.add_argument_group("options that all trainers share (they override `trainer` in the file)")
    hints = get_type_hints(TrainerConfig, include_extras=True)
    for field in msgspec.structs.fields(TrainerConfig):
        name = field.encode_name
        if name in BESIDES:
            continue
        metavar, meaning = MEANINGS[name]
        option = f"--{name.replace('_', '-')}"
        if bool in _members(hints[field.name]):
            group.add_argument(option, dest=name, action="store_const", const="true", help=meaning)
        else:
            group.add_argument(option, dest=name, metavar=metavar, choices=_choices(hints[field.name]), help=meaning)


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """The overrides that the given options mean: `trainer.lr=3e-4`. Text is quoted, so that it stays text in YAML."""
    hints = get_type_hints(TrainerConfig, include_extras=True)
    hints |= {field.encode_name: hints[field.name] for field in msgspec.structs.fields(TrainerConfig)}
    given = {name: value for name in MEANINGS if (value := getattr(arguments, name)) is not None}
    return [
        f"trainer.{name}={quoted(value) if str in _members(hints[name]) else value}" for name, value in given.items()
    ]


def quoted(text: str) -> str:
    """`text` as a YAML string: JSON's, with everything beyond printable ASCII escaped the way that YAML reads."""
    written = json.dumps(text, ensure_ascii=False)
    return "".join(character if " " <= character <= "~" else f"\\U{ord(character):08X}" for character in written)


def _members(hint: object) -> tuple[object, ...]:
    """The types of a field: `Annotated[int, ...] | None` gives (int,)."""
    if hint is None or hint is NoneType:
        return ()
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) is Literal or not get_args(hint):
        return (hint,)
    return tuple(member for part in get_args(hint) for member in _members(part))


def _choices(hint: object) -> tuple[str, ...] | None:
    for member in _members(hint):
        if get_origin(member) is Literal:
            return get_args(member)
    return None
