"""Parses Megatron's options in a function, as miles' tool does."""

import argparse
from pathlib import Path

from miles.backends.megatron_utils.arguments import parse


def add_conversion_args(parser):
    """Add the tool's own options."""
    parser.add_argument("--hf-checkpoint", required=True)
    parser.add_argument("--save", nargs=1)
    return parser


def get_args() -> argparse.Namespace:
    """Read the arguments."""
    return parse(add_conversion_args)


if __name__ == "__main__":
    (save,) = get_args().save
    (Path(save) / "release").mkdir(parents=True)
    (Path(save) / "latest_checkpointed_iteration.txt").write_text("release", encoding="utf-8")
