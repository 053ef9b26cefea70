"""Reads a file of scripts/models as miles does: by its name or its path without `.py`, printed on one line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def moe_layer_freq(layers: int) -> str:
    """Return the layers that hold experts."""
    return f"[{','.join(['1'] * min(layers, 3))}]"


if __name__ == "__main__":
    (name,) = sys.argv[1:]
    path = Path(__file__).parents[3] / "scripts" / "models" / f"{name}.py"
    sys.modules["model_args_utils"] = sys.modules[__name__]
    spec = importlib.util.spec_from_file_location("shape", path)
    assert spec is not None
    assert spec.loader is not None
    shape = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shape)
    print(" ".join(shape.model_args().split()))
