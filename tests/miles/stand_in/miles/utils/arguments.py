"""Parsers like miles' own: a first that asks for the backend, then the backend's, strict but for beginnings."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Register what both backends have, options by name alone for the most."""
    for name in (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").split():
        if name == os.environ.get("STAND_IN_LACKS"):
            continue
        parser.add_argument(name, nargs="*")
    parser.add_argument("--train-backend", choices=["megatron", "fsdp"], default="megatron")
    parser.add_argument("--advantage-estimator", choices=["grpo", "gspo", "ppo"])
    parser.add_argument("--rollout-batch-size", type=int, required=True)
    return parser


def parse_args() -> argparse.Namespace:
    """Read the command line of this process."""
    if "STAND_IN_WITHOUT_TORCH" in os.environ:
        raise ModuleNotFoundError("No module named 'torch'")
    first, _ = add_arguments(argparse.ArgumentParser()).parse_known_args()
    if first.train_backend == "fsdp":
        from miles.backends.fsdp_utils.arguments import parse
    else:
        from miles.backends.megatron_utils.arguments import parse
    args = parse(add_arguments)
    if args.kl_coef and args.kl_loss_coef:
        raise AssertionError("Only one of kl_coef and kl_loss_coef can be set")
    return args
