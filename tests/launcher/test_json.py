"""`--json` prints one object that the schema in docs/ describes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_launcher.main import main

from tests.kit.configs import LOCAL
from tests.launcher.outputs import printed
from tests.launcher.synthetic import make_run

Capture = pytest.CaptureFixture[str]


def test_show_prints_curves_and_episodes(capsys: Capture, tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")
    tree = printed(capsys, "show", str(run))
    assert tree["finished"] is True
    assert {(curve["name"], curve["kind"]) for curve in tree["curves"]} >= {("success", "train"), ("success", "eval")}
    assert [episode["number"] for episode in tree["episodes"]] == [1, 2, 3, 4, 5, 6]
    assert tree["episodes"][0]["conversations"] is None
    (one,) = printed(capsys, "show", str(run), "--episode", "6")["episodes"]
    assert one["verdict"] == "won"
    assert one["conversations"][0]["messages"][0]["tool_calls"][0]["function"]["name"] == "guess"
    assert len(one["conversations"][0]["data"][0]["logprobs"]) > 50


def test_show_refuses_json_and_html(capsys: Capture, tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")
    assert main(["show", str(run), "--json", "--html", str(tmp_path / "page.html")]) == 2
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
def test_prepare_and_doctor_print_reports(capsys: Capture, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tree = printed(capsys, "prepare", "--config", LOCAL, "--output", str(tasks), "--max-tasks", "3")
    assert (tree["total"], tree["environments"]) == (3, {"playground/GuessNumber": 3})
    broken = tmp_path / "broken.yaml"
    broken.write_text("environments: 3", encoding="utf-8")
    tree = printed(capsys, "doctor", "--config", str(broken), code=1)
    assert tree["ok"] is False
    assert [(one["group"], one["verdict"]) for one in tree["findings"]] == [
        ("configuration", "failed"),
        ("configuration", "not checked"),
    ]
