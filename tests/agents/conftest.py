"""The option that writes the table of tests/agents/seen.md, and the programs that npm installed."""

import os

import pytest

from tests.agents.programs import ROOT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help="write what was played into tests/agents/seen.md")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the programs that `just nightly agents` installs before all others."""
    monkeypatch.setenv("PATH", f"{ROOT / '.agents' / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}")
