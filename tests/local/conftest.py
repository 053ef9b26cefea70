"""Tests of the local trainer: a random model of three layers with a real tokenizer, scripted rollouts, one thread."""

from __future__ import annotations

import os

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import pytest
from transformers import Qwen3ForCausalLM

from tests.local.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(checkpoint, dtype="float32")
