"""Every benchmark runs at its smallest size, so that it cannot rot; what it measures is not looked at here."""

from __future__ import annotations

import io
import sys
from importlib import import_module

import pytest
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks.turns import fit


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


HEAVY = ("workers", "night", "peers", "short")  # those of many processes, whose parts others play


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.runs if name in HEAVY else pytest.mark.slow) for name in command.BENCHMARKS],
)
def test_a_benchmark_runs_and_complains_of_nothing(name: str) -> None:
    console = quiet()
    assert import_module(f"benchmarks.{name.replace('-', '_')}").run(console, quick=True) == []
    assert len(printed(console).splitlines()) >= 4  # a table with a row


def test_an_unknown_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "turn"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "no benchmark turn; there are turns, " in capsys.readouterr().err


def test_the_fit_finds_the_constant_and_the_slope_of_a_turn() -> None:
    turns = (5, 10, 80)
    costs = {n: 0.004 + n * 0.002 + 0.00003 * sum(0.505 * k for k in range(n)) for n in turns}
    constant, slope = fit({0: 0.004, **costs})
    assert (constant, slope) == pytest.approx((2.0, 0.03))
