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

MEGATRON_PARSER = "slime.backends.megatron_utils.arguments"  # loaded: then every parser has been asked


def findings(argv: Sequence[str]) -> probe.Findings:
    """What this environment says of itself, and of `argv` where there is one."""
    found = probe.findings("slime", argv, last_parser=MEGATRON_PARSER)
    return msgspec.structs.replace(
        found,
        features=("megatron",) if probe.finds("megatron.training") else (),
        obstacles=_obstacles(argv, found.root) if argv else (),
    )


def _obstacles(argv: Sequence[str], root: str) -> tuple[str, ...]:
    """What keeps slime from reading `--load`, which it does with some Hugging Face checkpoints as they are."""
    load = value_of(argv, "--load") or ""
    if not Path(load).exists():
        return (f"--load {load}: slime needs a folder: download the checkpoint, and name it with --model",)
    if _reads(Path(load)):
        return ()
    return (
        f"--load {load}: slime does not read this checkpoint as it is: convert it with {root}/tools/"
        "convert_hf_to_torch_dist.py and name the result with --megatron-ckpt",
    )


def _reads(load: Path) -> bool:
    if not (load / "config.json").is_file():
        return (load / "latest_checkpointed_iteration.txt").is_file()
    try:
        loader: Any = importlib.import_module("slime.backends.megatron_utils.hf_to_megatron")
    except ImportError:
        return True
    return bool(loader.supports_hf_weight_loading(str(load)))


if __name__ == "__main__":
    probe.answer(findings, sys.argv[1:])
