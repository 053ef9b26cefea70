"""What the tests of the adapter play with: a real OpenReward server, and a checkpoint's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slime import episode


@pytest.fixture(scope="session")
def environment(guess_number: str) -> str:
    return guess_number


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return episode.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
