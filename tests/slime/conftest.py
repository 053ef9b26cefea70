"""Fixtures of the adapter's tests: a real OpenReward server, and a checkpoint's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_cluster.hooks import worker
from orl_cluster.launch.machine.probe import finds
from orl_rollout.runtime import admission, stack

from tests.kit.tokenizers import open_once
from tests.slime import episode
from tests.slime.playing import Hosted
from tests.two_pythons.fixtures import cluster, orl, python, pythons, working

__all__ = ["cluster", "orl", "python", "pythons", "working"]

# Only slime from autumn 2026 on plays on several nodes.
collect_ignore = [] if finds("slime.rollout.fully_async_distributed") else ["test_real_distributed.py"]


@pytest.fixture(scope="session")
def environment(guess_number: str) -> str:
    return guess_number


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return episode.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def hosted(environment: str, checkpoint: Path, tmp_path: Path) -> Hosted:
    return Hosted(environment, checkpoint, tmp_path)


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch, short_pauses: None) -> None:
    """Give every test the state of a worker that has just begun. Only the certificate, half a second, is kept.

    A server that has never answered gets half a second.
    """
    monkeypatch.setattr(worker, "_runs", {})
    monkeypatch.setattr(admission, "FIRST_CONTACT", 0.5)
    for name in ("open_tokenizer", "open_renderer"):
        monkeypatch.setattr(stack, name, open_once(name))


@pytest.fixture(scope="session")
def trainer() -> str:
    return "slime"
