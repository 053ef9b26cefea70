"""The parser of a conversion tool is asked, and the tool does nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from orl_cluster.launch.convert.tool_probe import findings

AT_ONCE = """\
import argparse
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--input-dir", required=True)
    parser.add_argument("--chunk-size", type=int)
    parser.add_argument("-f", "--force", action="store_true")
    parser.parse_args()
    raise SystemExit("the tool goes on")
"""
IN_A_FUNCTION = """\
import argparse
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input-dir", required=True)
    parser.add_argument("--chunk-size", type=int)
    parser.parse_known_args()
    raise SystemExit("the tool goes on")
if __name__ == "__main__":
    raise SystemExit("the tool runs")
"""


@pytest.fixture(params=[(AT_ONCE, ""), (IN_A_FUNCTION, "get_args")], ids=["at once", "in a function"])
def tool(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    text, function = request.param
    (tmp_path / "tool.py").write_text(text, encoding="utf-8")
    return str(tmp_path / "tool.py"), function


def test_tool_stops_when_its_arguments_are_read(tool: tuple[str, str]) -> None:
    found = findings(*tool, ["--input-dir", "a", "--chunk-size", "3"])
    assert (found.complete, found.why, found.unknown) == (True, "", {})


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "--input-dir"),
        (["--input-dir", "a", "--chunk-size", "x"], "--chunk-size"),
        (["--input-dir", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_refusal_of_the_parser_is_told(tool: tuple[str, str], argv: list[str], told: str) -> None:
    found = findings(*tool, argv)
    assert found.complete
    assert told in found.why


def test_unknown_and_abbreviated_options_are_found(tool: tuple[str, str]) -> None:
    found = findings(*tool, ["--input-dir", "a", "--chunk", "3", "--other"])
    assert found.unknown == {"--chunk": "; did you mean --chunk-size?", "--other": found.unknown["--other"]}


def test_tool_that_cannot_be_loaded_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    (tmp_path / "tool.py").write_text("import no_such_module_anywhere\n", encoding="utf-8")
    found = findings(str(tmp_path / "tool.py"), "", ["--x"])
    assert not found.complete
    assert "no_such_module_anywhere" in found.why
    assert found.unknown == {}
