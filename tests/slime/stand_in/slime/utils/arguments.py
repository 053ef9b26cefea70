"""A parser like slime's: it keeps quiet about options that it does not know."""

from __future__ import annotations

import argparse
import os


def parse_args() -> argparse.Namespace:
    """Read the command line of this process."""
    if "STAND_IN_WITHOUT_TORCH" in os.environ:
        raise ModuleNotFoundError("No module named 'torch'")
    from slime.backends.megatron_utils.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    parser.add_argument("--use-tis", action=argparse.BooleanOptionalAction)
    parser.add_argument("--hf-checkpoint", required=True)
    args, _ = parser.parse_known_args()
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        raise AssertionError("Megatron needs CUDA_DEVICE_MAX_CONNECTIONS to be 1")
    if args.kl_coef and args.kl_loss_coef:
        raise AssertionError("Only one of kl_coef and kl_loss_coef can be set")
    return args
