"""The Tinker adapter's tests: the public SDK against the stand-in, and a random model of three layers."""

from __future__ import annotations

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TINKER_TELEMETRY"] = "0"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.local.checkpoints import write_checkpoint
from tests.tinker.serving import Served, served


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The SDK never closes the connection by which it asks for its settings."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture
def server(tmp_path: Path) -> Generator[Served]:
    with served(tmp_path / "tinker") as one:
        yield one
    gc.collect()  # here, where its warnings are expected
