"""Options by name alone, all but those that the other parser adds."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

NAMES = (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").split()


def add_megatron_arguments(parser: argparse.ArgumentParser) -> None:
    """Register every name."""
    for name in filter(lambda name: name != os.environ.get("STAND_IN_LACKS"), NAMES):
        parser.add_argument(name, nargs="*")
