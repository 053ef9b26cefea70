"""Megatron's own options, added to those of everybody, by name alone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

NAMES = (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").split()


def parse(add_arguments: Callable[[argparse.ArgumentParser], argparse.ArgumentParser]) -> argparse.Namespace:
    """Read the command line of this process."""
    parser = argparse.ArgumentParser("Megatron", allow_abbrev=False)
    for name in NAMES:
        parser.add_argument(name, nargs="*")
    args = add_arguments(parser).parse_args()
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        raise AssertionError("Megatron needs CUDA_DEVICE_MAX_CONNECTIONS to be 1")
    return args
