"""`orl convert`: a checkpoint in the other format, made by the trainer's own tool. It knows no trainer and no tool."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

import msgspec
from orl_core.config import Backend, TrainerConfig
from orl_rollout.run_folder.checkpoint import WORDS, Format, default_output
from orl_rollout.run_folder.contract import Conversion

from orl_launcher import cli
from orl_launcher.checkpoints import Found, last_in
from orl_launcher.trainer_options import add_option
from orl_launcher.trainers import find_trainer, print_plan

OPTIONS = ("model_args", "slime_path", "miles_path", "megatron_path")
DESCRIPTION = """\
Convert a checkpoint with the trainer's own tool: Hugging Face to Megatron, or Megatron or FSDP to Hugging Face.
The folder decides the direction. A run's folder stands for its last checkpoint. Its trainer and model are known.
A conversion to Megatron needs a GPU. --model-args names the file with the shape of the model.
"""
EXAMPLES = """\
  orl convert runs/NAME                                        to Hugging Face, in runs/NAME/checkpoint_hf
  orl convert slime /models/Qwen3-4B                           to Megatron, in /models/Qwen3-4B_torch_dist
  orl convert slime /models/Qwen3-235B --num-gpus 8 --output /models/Qwen3-235B_megatron
  orl convert miles checkpoints/iter_0000019 --model /models/Qwen3-4B --output Qwen3-4B-trained --dry-run
  orl convert slime runs/NAME -- --chunk-size 2147483648
"""


class ConvertParser(cli.PassingParser):
    """Parser that leaves everything after `--` to the tool."""

    elsewhere = "; give an option of the tool itself after `--`"


def parser() -> cli.Parser:
    """Return the options of `orl convert`."""
    made = ConvertParser("convert", description=DESCRIPTION, examples=EXAMPLES)
    backends = get_args(Backend)
    made.add_argument("backend", nargs="?", choices=backends, help="trainer (default: the one that wrote it)")
    made.add_argument("source", metavar="FOLDER", type=Path, help="checkpoint, one step of it, or a run's folder")
    made.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="new folder (default: FOLDER_hf or FOLDER_torch_dist; for a run, beside its checkpoint)",
    )
    made.add_argument("--dry-run", action="store_true", help="check everything, show the command, start nothing")
    cli.add_python(made)
    made.add_argument(
        "--model",
        metavar="FOLDER",
        help="Hugging Face checkpoint that training began with (default: that of the run or the note)",
    )
    made.add_argument(
        "--num-gpus", metavar="N", type=cli.positive, help="GPUs for a conversion to Megatron (default: 1)"
    )
    for name in OPTIONS:
        add_option(made, name)
    made.usage = "orl convert [slime|miles] FOLDER [options] [-- arguments of the tool]"
    return made


def run(arguments: argparse.Namespace) -> int:
    """Convert, or show the command."""
    found = _found(arguments.source)
    backend = arguments.backend or found.checkpoint.trainer
    if backend not in get_args(Backend):
        raise cli.UsageError(
            f"{found.folder}: no note tells its trainer. Name it: orl convert slime {arguments.source}"
        )
    wanted: Format = "megatron" if found.checkpoint.format == "hf" else "hf"
    conversion = Conversion(
        source=found.folder,
        checkpoint=found.checkpoint,
        output=arguments.output or default_output(found.folder, wanted),
        trainer=_options(arguments, backend),
        extra=arguments.extra,
        python=arguments.python,
    )
    trainer = find_trainer(backend)
    if arguments.dry_run:
        return print_plan(trainer.plan_conversion(conversion))
    console = cli.console()
    console.print(
        f"{found.folder} is {WORDS[found.checkpoint.format]}. The log: {conversion.output}.log", soft_wrap=True
    )
    trainer.convert(conversion)
    option = "--megatron-ckpt" if wanted == "megatron" else "--model"
    console.print(f"{conversion.output} is {WORDS[wanted]}. Name it with {option}", soft_wrap=True)
    return 0


def _found(source: Path) -> Found:
    if not source.is_dir():
        get = "" if source.is_absolute() else f". To get a checkpoint: hf download {source} --local-dir FOLDER"
        raise cli.UsageError(f"{source}: no such folder{get}")
    found = last_in(source)
    if found is None:
        raise cli.UsageError(f"{source}: no checkpoint here. Give the folder of a checkpoint or of a run")
    if found.checkpoint.critic:
        raise cli.UsageError(f"{source}: PPO's critic has no policy to convert. Give the checkpoint of its actor")
    return found


def _options(arguments: argparse.Namespace, backend: str) -> TrainerConfig:
    """Return the options of the trainer that were given.

    Raises:
        UsageError: one holds a credential.
    """
    given = {name: getattr(arguments, f"trainer.{name}", None) for name in OPTIONS}
    options = {**given, "backend": backend, "model": arguments.model, "num_gpus": arguments.num_gpus}
    try:
        return msgspec.convert(options, TrainerConfig)
    except msgspec.ValidationError as exc:
        raise cli.UsageError(str(exc)) from exc
