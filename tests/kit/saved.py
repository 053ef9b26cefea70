"""Folders laid out as trainers save checkpoints, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def saved(folder: Path, number: int | None, *, fsdp: bool = False) -> Path:
    """A folder with one step, named by its `number`; without one, converted weights."""
    name = "release" if number is None else f"iter_{number:07d}"
    weights = folder / name
    (weights / "model" if fsdp else weights).mkdir(parents=True)
    (weights / ("model/.metadata" if fsdp else "common.pt")).touch()
    (folder / "latest_checkpointed_iteration.txt").write_text("release" if number is None else str(number))
    return folder


def hugging_face(folder: Path, **described: Any) -> Path:
    """A folder with the config.json of a model."""
    folder.mkdir(parents=True)
    tree = {"model_type": "qwen3", "vocab_size": 600, **described}
    (folder / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    return folder
