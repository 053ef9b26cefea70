"""FSDP's own options, added to those of everybody."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

NAMES = (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").split()
SWITCHES = ("--gradient-checkpointing", "--fsdp-cpu-offload", "--keep-fp32-master", "--deterministic-mode")


def parse(add_arguments: Callable[[argparse.ArgumentParser], argparse.ArgumentParser]) -> argparse.Namespace:
    """Read the command line of this process."""
    parser = argparse.ArgumentParser("FSDP")
    for name in NAMES:
        parser.add_argument(name)
    for name in SWITCHES:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=False)
    return add_arguments(parser).parse_args()
