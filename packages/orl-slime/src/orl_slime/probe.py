"""Look at slime's own environment and at a command line: `python -m orl_slime.probe ANSWER -- arguments`.

It runs in the Python that has slime and is the one module of orl that calls slime's parser. slime ignores options that
it does not know, so they are found here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs
from orl_cluster.launch.machine import probe
from orl_cluster.launch.options import value_of
from orl_core.errors import OrlError, boundary
from orl_core.estimators import OPTION, estimator_named
from orl_core.names import download_of
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, conversion_of

MEGATRON_PARSER = "slime.backends.megatron_utils.arguments"  # loaded: then every parser has been asked
REPLAYS = "routing replay"  # its Sample reads what the engine returns (`orl_slime.generate`), from 0.3.1 on
FILTERS, EVALUATES = "fully async filters", "fully async evaluates"  # its fully async function, from autumn 2026 on
_ASYNC = "rollout/fully_async_rollout.py"
# A feature of the installed slime: the file, and the text in it, that show it.
_SHOWN = {
    REPLAYS: ("utils/types.py", "def append_response_tokens("),
    FILTERS: (_ASYNC, "dynamic_sampling_filter_path"),
    EVALUATES: (_ASYNC, "eval_rollout"),
}


def findings(argv: Sequence[str]) -> probe.Findings:
    """Look at this environment, and at `argv` if there is one."""
    facts = probe.findings("slime", argv, last_parser=MEGATRON_PARSER)
    features = (*features_of(facts.root), *((probe.FORWARDS,) if probe.router_forwards() else ()))
    fault = probe.not_forwarded(argv) or (obstacle(argv) if argv else "")
    return structs.replace(facts, features=features, obstacle=fault)


def features_of(root: str) -> list[str]:
    """Return the features that the sources in the checkout `root` show; none without a checkout."""
    files = {name: Path(root, "slime", file) for name, (file, _) in _SHOWN.items() if root}
    return [
        name for name, file in files.items() if file.is_file() and _SHOWN[name][1] in file.read_text(encoding="utf-8")
    ]


def obstacle(argv: Sequence[str]) -> str:
    """Return why slime cannot read its first checkpoint, or "".

    That is `--load`, or `--ref-load` if the run's own checkpoint is not there yet. Some Hugging Face checkpoints are
    read as they are.
    """
    load, reference, source = (value_of(argv, name) or "" for name in ("--load", "--ref-load", "--hf-checkpoint"))
    fresh = probe.goes_on(argv) and not _holds(load, CHECKPOINT_TRACKER) and not _holds(load, "config.json")
    name, begins = ("--ref-load", reference) if fresh else ("--load", load)
    if fresh and not Path(begins).exists():
        if begins == source:
            return f"{name} {begins}: slime needs a folder: name it with --model{download_of(begins, ', after ')}"
        return f"{name} {begins}: no such folder: run {conversion_of(source, 'slime', begins)}"
    of_run = _holds(f"{begins}/checkpoint", CHECKPOINT_TRACKER)  # a run's folder: its config.json is orl's
    if _holds(begins, CHECKPOINT_TRACKER) or of_run or not (fresh or _holds(begins, "config.json")):
        return probe.no_checkpoint(name, begins) or probe.of_fsdp(name, begins, "miles")
    if _holds(begins, "config.json") and _reads(begins):
        if not estimator_named(value_of(argv, OPTION) or "grpo").critic:
            return ""
        why = "slime cannot start PPO's critic from a Hugging Face checkpoint"
    else:
        why = "slime does not read this checkpoint as it is"
    return f"{name} {begins}: {why}: run {conversion_of(begins, 'slime')} and name the result with --megatron-ckpt"


def _holds(folder: str, file: str) -> bool:
    return (Path(folder) / file).is_file()


def _reads(load: str) -> bool:
    try:
        loader: Any = importlib.import_module("slime.backends.megatron_utils.hf_to_megatron")
    except ImportError:
        return True
    try:
        with boundary(OrlError, "slime's look at the checkpoint"):
            return bool(loader.supports_hf_weight_loading(load))
    except OrlError:  # its config.json is no model's
        return False


if __name__ == "__main__":
    probe.answer(findings, sys.argv[1:])
