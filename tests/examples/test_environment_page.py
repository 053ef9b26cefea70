"""docs/environment.md: its environment is served, and its commands run, for a few steps."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from orl_launcher import playground
from orl_launcher.main import main
from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.record import read_record
from orl_testing.environments import serve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
PAGE = (Path(__file__).parents[2] / "docs" / "environment.md").read_text("utf-8")
(CODE,) = re.findall(r'```python title="stones.py"\n(.*?)```', PAGE, re.S)
LINES = [
    line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) for line in block.replace("\\\n", " ").splitlines()
]
SMALL = "--set eval.max_tasks=4 --set environments.local/stones.max_turns=2 --set rollout.turn_tokens=12"
SHORT = {
    "init": "",
    "doctor": "",
    "warm-start": f"--steps 2 {SMALL}",
    "train-local": f"--num-rollout 1 --rollout-batch-size 2 --n-samples 2 {SMALL}",
    "show": "",
}


def test_splits_share_no_task() -> None:
    names: dict[str, Any] = {"__name__": "stones"}
    exec(compile(CODE, "stones.py", "exec"), names)
    train, test = map(names["Stones"].list_tasks, ("train", "test"))
    assert train
    assert not {*map(json.dumps, train)} & {*map(json.dumps, test)}


@pytest.mark.slow
def test_commands_teach_and_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORL_CACHE", str(tmp_path / "cache"))
    for name, value in (("GAMES", 40), ("STEPS", 3), ("BATCH", 4)):
        monkeypatch.setattr(playground, name, value)
    Path("stones.py").write_text(CODE, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "stones"}
    exec(compile(CODE, "stones.py", "exec"), names)
    begins = re.compile(r"(?:uv run orl|just) ")
    commands = [shlex.split(begins.sub("", line)) for line in LINES if begins.match(line)]
    assert [words[0] for words in commands][:4] == ["init", "doctor", "warm-start", "train-local"]
    with serve(names["Stones"]) as served:
        for recipe, *words in commands:
            command = {"train-local": ["train", "local"]}.get(recipe, [recipe])
            served_here = [word.replace("http://127.0.0.1:8080", served.url) for word in words]
            assert main([*command, *served_here, *SHORT[recipe].split()]) == 0, recipe
    shown = [entry.trajectory for entry in read_journal(Path("runs/stones-warm"))]
    assert all(turn.results and not turn.results[0].failure for one in shown for turn in one.turns)
    assert len(read_record(Path("runs/stones")).of_kind("eval")) == 2
