"""Every benchmark runs at its smallest size, so that it cannot rot; what it measures is not looked at here."""

from __future__ import annotations

import io
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from orl_core.messages import FailureKind, ParseFailure, ToolCall
from orl_core.tools import parse
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks.corpus import READERS, TOOLS, replies
from benchmarks.parsers import compare, difference, well_formed
from benchmarks.turns import fit
from tests.core.tools.wire import without_ids

FAKE = [sys.executable, str(Path(__file__).parent / "fake_detectors.py")]
BROKEN = ParseFailure(kind=FailureKind.INVALID_JSON, message="broken")
RUN = ToolCall(name="run", arguments={"command": "ls", "timeout": 3})
NOW = ToolCall(name="now")


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


LIGHT = ("import-time",)  # the benchmarks that take less than a second at their smallest size


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in LIGHT))
        for name in command.BENCHMARKS
        if name != "parsers"
    ],
)
def test_a_benchmark_runs_and_complains_of_nothing(name: str) -> None:
    console = quiet()
    assert import_module(f"benchmarks.{name.replace('-', '_')}").run(console, quick=True) == []
    assert len(printed(console).splitlines()) > 5


def test_an_unknown_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "turn"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "no benchmark turn; there are turns, " in capsys.readouterr().err


def test_the_parsers_are_compared_with_whatever_serves_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    console = quiet()
    assert compare(console, FAKE, quick=True) == []
    assert "a typed failure here, nothing in SGLang" in printed(console)
    assert "SGLang raises" not in printed(console)
    compare(console, [*FAKE, "raising"], quick=True)
    assert "SGLang raises" in printed(console)


def test_corpus_is_reproducible_and_well_formed_calls_parse() -> None:
    corpus = list(replies(3))
    assert corpus == list(replies(3))
    assert {(reply.wire, reply.detector) for reply in corpus} == set(READERS)
    meant = [reply for reply in corpus if well_formed(reply) and reply.damage != "prose alone"]
    assert len(meant) > 3 * len(READERS)
    for reply in meant:
        assert without_ids(parse(reply.text, reply.format, tools=TOOLS).calls) == reply.calls


@pytest.mark.parametrize(
    ("mine", "theirs", "error", "why"),
    [
        ([RUN], [RUN], "", ""),
        ([RUN], [], "KeyError", "SGLang raises"),
        ([RUN, BROKEN], [RUN], "", "a typed failure here, nothing in SGLang"),
        ([RUN, BROKEN], [], "", "the whole ones stay here, SGLang gives all up"),
        ([BROKEN], [RUN], "", "SGLang guesses"),
        ([ToolCall(name="no_such_tool"), NOW], [NOW], "", "an unknown tool"),
        ([RUN], [ToolCall(name="run", arguments={"command": " ls", "timeout": 3.0})], "", "strips strings"),
        ([RUN], [ToolCall(name="run", arguments={"command": "ls", "timeout": "3"})], "", "SGLang guesses"),
        ([NOW, RUN], [RUN], "", "SGLang misses a whole call"),
        ([], [RUN], "", "a bare call behind prose"),
        ([RUN], [NOW], "", "unexplained"),
    ],
)
def test_a_difference_has_a_name(mine: Any, theirs: list[ToolCall], error: str, why: str) -> None:
    found = difference(mine, [[call.name, call.arguments] for call in theirs], error)
    assert why in found
    assert bool(why) == bool(found)


def test_arguments_that_are_a_text_of_json_are_told_from_others() -> None:
    assert "decoded once here" in difference([RUN], [["run", json.dumps(RUN.arguments)]], "")


def test_the_fit_finds_the_constant_and_the_slope_of_a_turn() -> None:
    turns = (5, 10, 80)
    costs = {n: 0.004 + n * 0.002 + 0.00003 * sum(0.505 * k for k in range(n)) for n in turns}
    constant, slope = fit({0: 0.004, **costs})
    assert (constant, slope) == pytest.approx((2.0, 0.03))
