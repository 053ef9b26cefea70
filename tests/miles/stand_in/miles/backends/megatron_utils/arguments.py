"""Megatron's own options beside those of everybody, by name alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

NAMES = (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").split()


def parse(add_arguments: Callable[[argparse.ArgumentParser], argparse.ArgumentParser]) -> argparse.Namespace:
    """Read the command line of this process."""
    parser = argparse.ArgumentParser("Megatron", allow_abbrev=False)
    for name in NAMES:
        parser.add_argument(name, nargs="*")
    return add_arguments(parser).parse_args()
