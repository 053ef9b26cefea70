"""Held-out tasks that are trained on are refused before a run, or the run says that it has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openreward.environments import ToolOutput, tool
from orl_launcher import trainers
from orl_launcher.commands import train
from orl_launcher.main import main
from orl_rollout.run_folder.config_file import read_object
from orl_testing.environments import serve
from orl_testing.environments.base import Gallery, output

from tests.launcher import adapters

ALLOWED = ["--set", "eval.allow_overlap=true"]


class OneList(Gallery):
    """Lists the same tasks for both splits. Its base is never served: the SDK caches listings with the class."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        del split
        return [{"number": number} for number in range(4)]

    @tool
    async def finish(self) -> ToolOutput:
        return output("done", finished=True)


@pytest.fixture
def config(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in (trainers, train):
        monkeypatch.setattr(module, "find_trainer", lambda _: adapters.Adapter(adapters.train_well))
    with serve(OneList) as served:
        environment = {"base_url": served.url, "eval_splits": ["test"]}
        tree = {"environments": {"Org/OneList": environment}, "trainer": {"model": model, "num_rollout": 3}}
        (tmp_path / "my.yaml").write_text(json.dumps(tree), "utf-8")
        yield str(tmp_path / "my.yaml")


def test_prepare_refuses_overlap_and_keeps_old_file(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path
) -> None:
    output = tmp_path / "out" / "tasks.jsonl"
    words = ["prepare", "--config", config, "--output", str(output)]
    assert main(words) == 1
    assert not list(output.parent.iterdir())
    assert main([*words, *ALLOWED]) == 0
    assert main([*words, "--split", "eval_splits"]) == 0
    output.write_text("old", "utf-8")
    assert main([*words, "--set", "eval.max_tasks=1"]) == 1
    assert "1 of 1 held-out" in capsys.readouterr().err  # as the run would draw them
    assert output.read_text("utf-8") == "old"


@pytest.mark.parametrize("given", [False, True])
def test_run_with_overlap_does_not_start(capsys: pytest.CaptureFixture[str], config: str, given: bool) -> None:
    if given:
        assert main(["prepare", "--config", config, "--split", "train", "--output", "given.jsonl"]) == 0
    more = ["--task-data", "given.jsonl"] if given else []
    assert main(["train", "local", "--config", config, "--name", "one", *more]) == 1
    assert "4 of 4 held-out tasks" in capsys.readouterr().err
    assert not Path("runs/one").exists()


def test_report_names_overlap_that_is_allowed(config: str) -> None:
    assert main(["train", "local", "--config", config, "--name", "one", *ALLOWED]) == 0
    assert read_object(Path("runs/one/summary.json"))["overlap"] == 4
    page = Path("runs/one/report.html").read_text("utf-8")
    assert "on held-out tasks" in page
    assert "never trained on" not in page
    assert "eval.allow_overlap" in page
