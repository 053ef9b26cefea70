"""Fixtures of the adapter's tests: a real OpenReward server, and a checkpoint's tokenizer and configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slime import episode
from tests.slime.conftest import environment, fresh_process, hosted
from tests.two_pythons.fixtures import cluster, orl, python, pythons, working

__all__ = ["cluster", "environment", "fresh_process", "hosted", "orl", "python", "pythons", "working"]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = episode.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 2}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def trainer() -> str:
    return "miles"
