"""The Hugging Face checkpoints that are read as they are."""

from __future__ import annotations

import json
from pathlib import Path


def supports_hf_weight_loading(path: str) -> bool:
    """By the model's type."""
    config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    return config["model_type"] == "qwen3"
