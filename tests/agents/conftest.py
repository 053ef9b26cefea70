"""The option that writes the table of docs/evidence/agents.md, and the programs that npm installed."""

import os

import pytest

from tests.agents.programs import ROOT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help="write what was played into docs/evidence/agents.md")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the programs that `just test-agents` installs before all others."""
    monkeypatch.setenv("PATH", f"{ROOT / '.agents' / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}")
