"""What slime's own environment says of itself and of a command line: `python -m orl_slime.probe ANSWER -- arguments`.

It runs in the Python that has slime and is the one module of orl that calls slime's parser. slime ignores options that
it does not know, so they are found here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from orl_rollout.cluster import probe
from orl_rollout.cluster.argv import value_of
from orl_rollout.cluster.options import TRACKER

MEGATRON_PARSER = "slime.backends.megatron_utils.arguments"  # loaded: then every parser has been asked


def findings(argv: Sequence[str]) -> probe.Findings:
    """What this environment says of itself, and of `argv` where there is one."""
    found = probe.findings("slime", argv, last_parser=MEGATRON_PARSER)
    obstacle, note = _judged(argv, found.root) if argv else ("", "")
    return msgspec.structs.replace(
        found,
        features=("megatron",) if probe.finds("megatron.training") else (),
        obstacles=(obstacle,) if obstacle else (),
        notes=(note,) if note else (),
    )


def _judged(argv: Sequence[str], root: str) -> tuple[str, str]:
    """What keeps slime from reading what it begins with, and what to know of that.

    It is `--load`, where a checkpoint is there, else `--ref-load`. Some Hugging Face checkpoints are read as they are.
    """
    load, reference = (value_of(argv, name) or "" for name in ("--load", "--ref-load"))
    there = any((Path(load) / file).is_file() for file in (TRACKER, "config.json"))
    own = load == value_of(argv, "--save")
    note = "" if there or own else f"--load {load}: no checkpoint is there yet, training starts from {reference}"
    name, begins = ("--load", load) if there else ("--ref-load", reference)
    if not Path(begins).exists():
        return f"{name} {begins}: slime needs a folder: download the checkpoint, and name it with --model", note
    if _reads(Path(begins)):
        return "", note
    return (
        f"{name} {begins}: slime does not read this checkpoint as it is: convert it with {root}/tools/"
        "convert_hf_to_torch_dist.py and name the result with --megatron-ckpt",
        note,
    )


def _reads(load: Path) -> bool:
    if (load / TRACKER).is_file() or not (load / "config.json").is_file():
        return (load / TRACKER).is_file()
    try:
        loader: Any = importlib.import_module("slime.backends.megatron_utils.hf_to_megatron")
    except ImportError:
        return True
    return bool(loader.supports_hf_weight_loading(str(load)))


if __name__ == "__main__":
    probe.answer(findings, sys.argv[1:])
