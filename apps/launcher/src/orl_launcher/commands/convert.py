"""`orl convert`: a checkpoint in the other format, made by the trainer's own tool. It knows no trainer and no tool."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from orl_core.names import download_of
from orl_rollout.run_folder.checkpoint import WORDS, Format, default_output
from orl_rollout.run_folder.contract import Conversion

from orl_launcher import cli
from orl_launcher.configuration import Found, last_in, resolve
from orl_launcher.trainers import add_own, find_trainer, known, print_plan

DESCRIPTION = """\
Convert a checkpoint with the trainer's own tool: Hugging Face to Megatron, or Megatron or FSDP to Hugging Face.
The folder decides the direction. A run's folder stands for its last checkpoint. Its trainer and model are known.
A conversion to Megatron needs a GPU.
"""
EXAMPLES = """\
  orl convert runs/NAME                                        to Hugging Face, in runs/NAME/checkpoint_hf
  orl convert slime /models/Qwen3-4B                           to Megatron, in /models/Qwen3-4B_torch_dist
  orl convert slime /models/Qwen3-235B --num-gpus 8 --output /models/Qwen3-235B_megatron
  orl convert miles checkpoints/iter_0000019 --model /models/Qwen3-4B --output Qwen3-4B-trained --dry-run
  orl convert slime runs/NAME -- --chunk-size 2147483648

A trainer that is named has options of its own. To show them:"""


BARE: dict[str, Any] = {"environments": {"orl/convert": {}}}


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl convert`."""
    options.set_defaults(config=None, overrides=[])
    options.add_argument(
        "trainer.backend", type=known, nargs="?", metavar="TRAINER", help="trainer (default: the checkpoint's)"
    )
    options.add_argument("source", metavar="FOLDER", type=Path, help="checkpoint, one step of it, or a run's folder")
    options.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="new folder (default: FOLDER_hf or FOLDER_torch_dist; for a run, next to its checkpoint)",
    )
    options.add_argument("--dry-run", action="store_true", help="check everything, show the command, start nothing")
    cli.add_python(options)
    options.add_argument(
        "--model",
        metavar="FOLDER",
        help="Hugging Face checkpoint that training began with (default: that of the run or the note)",
    )
    add_own(options, converts=True)
    options.usage = "orl convert [TRAINER] FOLDER [options] [-- arguments of the tool]"


def run(arguments: argparse.Namespace) -> int:
    """Convert, or show the command."""
    match = _found(arguments.source)
    backend = vars(arguments)["trainer.backend"] or match.checkpoint.trainer
    if not backend:
        raise cli.UsageError(
            f"{match.folder}: no note tells its trainer. Name it: orl convert TRAINER {arguments.source}"
        )
    trainer = find_trainer(backend)
    vars(arguments).update({"trainer.backend": backend, "trainer.model": arguments.model})
    config, *_ = resolve(arguments, bare=BARE, model="unread")
    wanted: Format = "megatron" if match.checkpoint.format == "hf" else "hf"
    conversion = Conversion(
        source=match.folder,
        checkpoint=match.checkpoint,
        output=arguments.output or default_output(match.folder, wanted),
        trainer=config.trainer,
        extra=arguments.extra,
        python=arguments.python,
    )
    if arguments.dry_run:
        return print_plan(trainer.plan_conversion(conversion))
    console = cli.console()
    console.print(f"{match.folder} is {WORDS[match.checkpoint.format]}. The log: {conversion.output}.log")
    trainer.convert(conversion)
    advice = ". Name it with --model" if wanted == "hf" else ""
    console.print(f"{conversion.output} is {WORDS[wanted]}{advice}")
    return 0


def _found(source: Path) -> Found:
    if not source.is_dir():
        raise cli.UsageError(f"{source}: no such folder{download_of(str(source), '. To get a checkpoint: ')}")
    match = last_in(source)
    if match is None:
        raise cli.UsageError(f"{source}: no checkpoint here. Give the folder of a checkpoint or of a run")
    if match.checkpoint.critic:
        raise cli.UsageError(f"{source}: PPO's critic has no policy to convert. Give the checkpoint of its actor")
    return match
