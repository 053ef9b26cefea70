"""`orl convert miles`: the command line, with and without an environment that has miles (a stand-in)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.miles.environment import STAND_IN, make_environment
from tests.two_pythons import planning
from tests.two_pythons.converting import SOURCES, assert_golden, folders, planned

Capture = pytest.CaptureFixture[str]
MODEL = ["--model", "Qwen3-0.6B"]
OPTIONS = {"megatron": MODEL, "fsdp": MODEL, "hf": []}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_environment(tmp_path_factory.mktemp("second") / "env"))


@pytest.fixture(autouse=True)
def working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkpoint of each format, and none of the machine's own variables."""
    planning.alone(monkeypatch, tmp_path)
    folders(tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", OPTIONS)
def test_command_is_shown_without_miles(capsys: Capture, working: Path, source: str) -> None:
    shown = planned(capsys, "miles", SOURCES[source], *OPTIONS[source]).replace(str(working), "HERE")
    assert_golden("miles", f"{source}_without_miles", shown)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["hf", "fsdp"])
def test_tool_reads_the_command(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, python: str, working: Path, source: str
) -> None:
    monkeypatch.setenv("STAND_IN_GPUS", "1")
    shown = planned(capsys, "miles", SOURCES[source], *OPTIONS[source], "--python", python)
    for real, stands_for in ((python, "PYTHON"), (str(STAND_IN), "MILES"), (str(working), "HERE")):
        shown = shown.replace(real, stands_for)
    assert_golden("miles", source, shown)
