"""Fixtures of the command's tests: a folder without this machine's keys, a checkpoint, and the upload service."""

from __future__ import annotations

from collections.abc import Generator
from itertools import product
from pathlib import Path

import pytest
from orl_launcher.doctor import doctor
from orl_rollout.runtime import stack

from tests.kit.collector import Collector
from tests.kit.tokenizers import open_once

KEYS = ("OPENREWARD_API_KEY", "OPENREWARD_URL", "ORL_TRAINER_PYTHON", "TOKEN", "JUDGE_KEY", "OPENAI_API_KEY")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder, with none of this machine's keys. A checkpoint is certified once for all tests."""
    for module, name in product((doctor, stack), ("open_tokenizer", "open_renderer")):
        monkeypatch.setattr(module, name, open_once(name))
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session", name="model")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a checkpoint, named as the engine's stand-in names its model."""
    from tests.local.checkpoints import write_checkpoint

    folder = tmp_path_factory.mktemp("models") / "stand-in"
    write_checkpoint(folder)
    return str(folder)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[Collector]:
    """The upload service, for a user with a key."""
    collector = Collector()
    with collector.serving():
        monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
        monkeypatch.setenv("OPENREWARD_API_URL", collector.url)
        yield collector
