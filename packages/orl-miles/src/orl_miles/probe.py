"""Look at miles' own environment and at a command line: `python -m orl_miles.probe ANSWER -- arguments`.

It runs in the Python that has miles and is the one module of orl that calls miles' parser. miles refuses options that
it does not know, but takes the beginning of an option for the option, and passes over checkpoints that its backend
cannot read: both are found here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from msgspec import structs
from orl_cluster.launch.machine import probe
from orl_cluster.launch.options import value_of
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, conversion_of

FLASH = ("flash_attention_2", "flash_attention_3")  # the builds that are looked for; the first is miles' default
FLASH_PACKAGES = dict(zip(("flash-attn", "flash-attn-3"), FLASH, strict=True))
INSTEAD = "--train-backend fsdp, or "  # of a conversion
OWN_ROUTER = "--use-miles-router"  # forwards every field of a request


def findings(argv: Sequence[str]) -> probe.Findings:
    """Look at this environment, and at `argv` if there is one."""
    backend = value_of(argv, "--train-backend") or "megatron"
    facts = probe.findings("miles", argv, last_parser=f"miles.backends.{backend}_utils.arguments")
    features = _features(Path(facts.root)) if facts.root else ()
    fault = ("" if OWN_ROUTER in argv else probe.not_forwarded(argv)) or (obstacle(argv) if argv else "")
    return structs.replace(facts, features=features, obstacle=fault)


def obstacle(argv: Sequence[str]) -> str:
    """Return why the training backend of `argv` cannot read its first checkpoint, or ""."""
    return _fsdp_checkpoint(argv) if value_of(argv, "--train-backend") == "fsdp" else _megatron_checkpoint(argv)


def _features(root: Path) -> tuple[str, ...]:
    """Return the training backends and flash-attention builds that are installed, and whether routing is forwarded."""
    actor = root / "miles" / "backends" / "fsdp_utils" / "actor.py"
    here = ["megatron"] if probe.finds("megatron.training") else []
    if actor.is_file():
        here.append("fsdp")
    builds = (attention for package, attention in FLASH_PACKAGES.items() if any(distributions(name=package)))
    return (*here, *builds, *((probe.FORWARDS,) if probe.router_forwards() else ()))


def _fsdp_checkpoint(argv: Sequence[str]) -> str:
    """Return why FSDP cannot read `--load`, or "". It ignores in silence what it cannot read."""
    load, model = value_of(argv, "--load") or "", value_of(argv, "--hf-checkpoint") or ""
    if load == model:
        return ""
    if (Path(load) / "config.json").is_file() and not (Path(load) / "checkpoint" / CHECKPOINT_TRACKER).is_file():
        return f"--load {load}: name a Hugging Face checkpoint with --model; --load continues from one of miles' own"
    if why := _unsaved(argv, load):
        return why
    if (Path(load) / CHECKPOINT_TRACKER).is_file() and not probe.of_fsdp("--load", load, "miles"):
        why = "FSDP did not write this checkpoint and would start anew: --train-backend megatron"
        return f"--load {load}: {why}, or run {conversion_of(load, 'miles')} and name the result with --model"
    return ""


def _megatron_checkpoint(argv: Sequence[str]) -> str:
    """Return why Megatron cannot read `--load`, or `--ref-load` if there is nothing yet; "" if it can."""
    load, reference = value_of(argv, "--load") or "", value_of(argv, "--ref-load") or ""
    if not (Path(load) / "config.json").is_file() and (why := _unsaved(argv, load)):
        return why
    if (Path(load) / CHECKPOINT_TRACKER).is_file():
        return probe.of_fsdp("--load", load, "miles", INSTEAD)
    if (Path(reference) / CHECKPOINT_TRACKER).is_file():
        return probe.no_checkpoint("--ref-load", reference) or probe.of_fsdp("--ref-load", reference, "miles", INSTEAD)
    if value_of(argv, "--megatron-to-hf-mode") == "bridge":
        return ""
    model, bridge = value_of(argv, "--hf-checkpoint") or "", "or give `-- --megatron-to-hf-mode bridge`"
    if reference != model and not Path(reference).exists():
        return f"--ref-load {reference}: no such folder: run {conversion_of(model, 'miles', reference)}, {bridge}"
    source = reference if Path(reference).is_dir() else model
    return (
        f"--ref-load {reference}: Megatron reads its own format: run {conversion_of(source, 'miles')} and name the "
        f"result with --megatron-ckpt, {bridge}"
    )


def _unsaved(argv: Sequence[str], load: str) -> str:
    """Return why `--load` is no checkpoint of miles, or "". The run's own, `--save`, need not be there yet."""
    if probe.goes_on(argv) and not (Path(load) / CHECKPOINT_TRACKER).is_file():
        return ""
    return probe.no_checkpoint("--load", load)


if __name__ == "__main__":
    probe.answer(findings, sys.argv[1:])
