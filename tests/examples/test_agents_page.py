"""The commands of docs/agents.md: rollouts are played, trainings run up to their plan, recipes and files exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from orl_launcher.main import main
from orl_rollout.episodes.journal import read_journal

from tests.kit.guessing import GUESSES, Guesser
from tests.kit.serving import engine
from tests.kit.tokenizers import build, template

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "agents.md").read_text("utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
LINES = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
COMMANDS = [found[2] for line in LINES if (found := re.match(r"(just|uv run orl) (.*)", line))]
TASKS = 2


def words_of(recipe: str) -> list[list[str]]:
    """The arguments of each command of the page that runs `recipe`."""
    split = [shlex.split(line.replace("$PWD", str(ROOT))) for line in COMMANDS]
    return [words[1:] for words in split if words[0] == recipe]


def test_files_of_the_page_exist() -> None:
    assert words_of("rollout")
    assert words_of("train-local")
    files = {*re.findall(r"(?:docs|examples|configs)/[\w./-]+\.\w+", PAGE)}
    assert len(files) > 5
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead")
@pytest.mark.parametrize("words", words_of("rollout"), ids=range(len(words_of("rollout"))))
def test_rollouts_are_won(words: list[str], tmp_path: Path, guess_number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("orl_launcher.trainers.RUNS", tmp_path)
    build(template("qwen3")).save_pretrained(tmp_path / "model")
    stub = tmp_path / "codex"  # the real one needs npm: `just nightly agents`
    stub.write_text(f"#!/bin/sh\nexec {sys.executable} {ROOT}/examples/agents/program.py\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with engine(Guesser().action_ids) as url:
        served = ["--set", f"environments.playground/GuessNumber.base_url={guess_number}"]
        room = ["--set", "rollout.turn_tokens=128", "--set", "rollout.context_tokens=4096"]
        to = ["--engine", url, "--model", str(tmp_path / "model"), "--name", "out"]
        assert main(["rollout", *words, *served, *room, *to, "--max-tasks", str(TASKS)]) == 0
    entries = [*read_journal(tmp_path / "out")]
    assert [(entry.success, entry.trajectory.error) for entry in entries] == [(True, "")] * TASKS
    assert all(len(entry.trajectory.turns) <= GUESSES for entry in entries)
