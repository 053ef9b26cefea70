"""Tell from a command line whether the weights of engines can be compared with those that train.

No trainer is named, and no process asked. A model of a hub that was never loaded here counts as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orl_core.errors import ConfigError
from orl_rollout.memory import config_of
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, checkpoint_in, lasting_name, trained_number

from orl_cluster.launch.options import names_in, value_of

# Beginnings of options, by what they make differ: the numbers that engines and training compute with; the weights that
# a rollout comes from and those that train on it; the weights that engines and training begin with, or get later.
DIFFERENT = {
    "numbers": ("--fp8", "--fp4", "--sglang-quantization", "--sglang-torchao", "--sglang-kv-cache-dtype"),
    "rollouts": (
        "--partial-rollout",
        "--fully-async",
        "--rollout-function-path",
        "--buffer-filter-path",
        "--load-debug-rollout-data",
    ),
    "beginning": (
        "--fp16",
        "--lora",
        "--ckpt-step",
        "--pretrained-checkpoint",
        "--update-weight-mode",
        "--update-weight-trans",
        "--sglang-config",
        "--sglang-dtype",
        "--sglang-load-format",
        "--sglang-model-path",
        "--sglang-speculative",
        "--debug",
        "--load-debug-rollout-data",
    ),
}
OTHER_PARTS = {"quantization_config", "vision_config", "audio_config"}  # training sends no other towers


def samples_fresh(argv: Sequence[str], *, asynchronous: bool) -> bool:
    """Tell whether rollouts are sampled from the weights, and in the numbers, that train on them.

    With `--use-rollout-logprobs`, trainers report the difference after each update of a batch, not before the first.
    """
    several = value_of(argv, "--num-steps-per-rollout") not in (None, "1")
    if asynchronous or (several and value_of(argv, "--use-rollout-logprobs") is not None):
        return False
    return not _differ(argv, "numbers", "rollouts") and "quantization_config" not in _described(argv)


def comparable_at_start(argv: Sequence[str]) -> bool:
    """Tell whether training begins with the weights that the engines load, in bfloat16 on both sides, all trained."""
    described = _described(argv)
    if _differ(argv, "numbers", "beginning") or described.keys() & OTHER_PARTS:
        return False
    is_bf16 = (described.get("dtype") or described.get("torch_dtype")) == "bfloat16"
    return is_bf16 and _begins_with_model(argv)


def _differ(argv: Sequence[str], *parts: str) -> bool:
    """Tell whether an option of `argv` makes one of `parts` differ."""
    return any(name.startswith(DIFFERENT[part]) for part in parts for name in names_in(argv))


def _described(argv: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of the model; {} if it is not known."""
    with suppress(ConfigError):
        return config_of(value_of(argv, "--hf-checkpoint") or "")
    return {}


def _begins_with_model(argv: Sequence[str]) -> bool:
    """Tell whether the first checkpoint of training is the model that engines load, or was converted from it."""
    model, load, reference = (value_of(argv, name) or "" for name in ("--hf-checkpoint", "--load", "--ref-load"))
    held = any((Path(load) / name).is_file() for name in (CHECKPOINT_TRACKER, "config.json"))
    begins = load if load and held else reference
    if begins == model:
        return True
    with suppress(ConfigError):  # of a note that cannot be read
        checkpoint = checkpoint_in(Path(begins))
        return (
            checkpoint is not None and trained_number(Path(begins)) is None and checkpoint.model == lasting_name(model)
        )
    return False
