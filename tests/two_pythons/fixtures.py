"""Fixtures of a second environment: its Python, an empty working folder, and `orl train` of the trainer in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from orl_cluster.launch.machine import probe

from tests.two_pythons import forked_probe, planning
from tests.two_pythons.environment import ROOT, STAND_INS, make_environment
from tests.two_pythons.planning import WHODUNIT


class Orl:
    """`orl train TRAINER --dry-run` in the folder `working`, with the trainer of `python`."""

    def __init__(self, trainer: str, python: str, working: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.trainer, self.python, self.working, self.capsys = trainer, python, working, capsys

    def planned(self, *argv: str, config: str = WHODUNIT, python: str = "") -> str:
        """Return what a dry run prints."""
        return planning.planned(self.capsys, self.trainer, python or self.python, *argv, config=config)

    def refused(self, *argv: str, config: str = WHODUNIT, python: str = "") -> str:
        """The one line with which a dry run ends."""
        return planning.refused(self.capsys, self.trainer, python or self.python, *argv, config=config)

    def words(self, *argv: str, config: str = WHODUNIT) -> list[str]:
        """The command of a dry run, as a shell would read it."""
        return planning.words_of(self.planned(*argv, config=config))

    def assert_golden(self, name: str, shown: str, **others: str) -> None:
        """Hold what a dry run prints against the file of its name. `others` are the texts that stand for others."""
        own = {"PYTHON": self.python, self.trainer.upper(): str(STAND_INS[self.trainer])}
        for stands_for, real in {**own, **others, "HERE": str(self.working)}.items():
            shown = shown.replace(real, stands_for)
        golden = ROOT / "tests" / "golden" / self.trainer / f"{name}.txt"
        assert shown == golden.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return the Python of a trainer's second environment, which is made once."""
    with ExitStack() as life:

        @cache
        def python_of(trainer: str) -> str:
            python = str(make_environment(tmp_path_factory.mktemp("second") / "env", trainer))
            life.enter_context(forked_probe.forking(python))
            return python

        yield python_of


@pytest.fixture
def python(trainer: str, pythons: Callable[[str], str]) -> str:
    """Not of the session: modules of tests give `trainer` different values."""
    return pythons(trainer)


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder, and none of the machine's own keys, proxies and clusters."""
    monkeypatch.setattr(probe, "answer_of", forked_probe.answer)
    return planning.alone(monkeypatch, tmp_path, "MILES_USE_LEGACY_ROLLOUT_V1")


@pytest.fixture
def orl(trainer: str, python: str, working: Path, capsys: pytest.CaptureFixture[str]) -> Orl:
    return Orl(trainer, python, working, capsys)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, working: Path) -> Iterator[None]:
    """A cluster that runs already, so that none is started; and a machine that says it has a GPU."""
    with planning.cluster(monkeypatch):
        yield
