"""Parses Megatron's options in a function, as slime's tool does."""

import argparse
from pathlib import Path

from slime.backends.megatron_utils.arguments import add_megatron_arguments


def get_args():
    """Read the arguments."""
    parser = argparse.ArgumentParser()
    add_megatron_arguments(parser)
    parser.add_argument("--hf-checkpoint", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    (save,) = get_args().save
    (Path(save) / "release").mkdir(parents=True)
    (Path(save) / "latest_checkpointed_iteration.txt").write_text("release", encoding="utf-8")
