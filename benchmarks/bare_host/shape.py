"""The shape of a model as miles reads it. The variable SHAPE names slime's script: `--model-args shape.py`."""

from __future__ import annotations

import os
import subprocess


def model_args() -> str:
    """Return the options of the shape."""
    show = 'source "$0"; echo "${MODEL_ARGS[*]}"'
    command = ["bash", "-c", show, os.environ["SHAPE"]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
