"""A dry run without the trainer: what needs none is checked, and the rest is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from orl_cluster.launch.machine import probe
from orl_core.errors import ConfigError

from tests.two_pythons import planning
from tests.two_pythons.environment import make_environment
from tests.two_pythons.planning import WHODUNIT, words_of

Told = Callable[..., str]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """`orl train slime --dry-run` in an empty folder: its plan."""
    planning.alone(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return lambda *argv: planning.shown(capsys, ["train", "slime", "--config", WHODUNIT, "--dry-run", *argv])


def test_keys_and_reward_function_are_checked(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("graded.py").write_text("def score(trajectory):\n    return 1.0\n", "utf-8")
    plan = told("--set", "reward=graded:scor")
    assert "not set in the environment: OPENREWARD_API_KEY" in plan
    assert "openai_api_key or OPENAI_API_KEY" in plan
    assert "`scor` from module `graded`" in plan
    assert "module `nothere`" in told("--set", "reward=nothere:score")
    monkeypatch.setenv("OPENREWARD_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    checked = told("--set", "reward=graded:score").partition("\n# ")[2]
    assert "OPENREWARD_API_KEY" not in checked
    assert "OPENAI_API_KEY" not in checked
    assert "graded" not in checked
    assert "# not checked by slime: options, GPUs and their memory, " in checked


@pytest.mark.parametrize(
    ("trainer", "words", "advice"),
    [
        ("slime", ["--gradient-checkpointing"], "--recompute-granularity"),
        ("slime", ["--async-buffer-size", "2"], "--update-weights-interval"),
        ("miles", ["--context-parallel-size", "2"], "--train-backend megatron"),
        ("miles", ["--recompute-granularity", "full"], "--gradient-checkpointing"),
    ],
)
@pytest.mark.usefixtures("told")
def test_option_that_the_backend_lacks_is_refused(
    trainer: str, words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planning.ended(capsys, ["train", trainer, "--config", WHODUNIT, "--dry-run", "--", *words])
    assert words[0] in told
    assert advice in told


@pytest.mark.usefixtures("told")
def test_option_that_the_backend_has_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "miles", "--config", WHODUNIT, "--dry-run", "--", "--gradient-checkpointing"]
    assert "--gradient-checkpointing" in words_of(planning.shown(capsys, words))


def test_plan_is_shown_for_a_python_that_lacks_orl(told: Told, tmp_path: Path) -> None:
    lacking = str(make_environment(tmp_path / "lacking", "slime", adapter=False))
    plan = told("--python", lacking)
    assert words_of(plan)[1] == lacking
    assert f"orl install-into {lacking} --trainer slime" in plan
    assert "Error while finding" not in plan


def test_absent_checkpoint_is_made_where_it_is_looked_for(told: Told) -> None:
    plan = told("--model", "/models/Qwen3-0.6B", "--megatron-ckpt", "./new")
    assert f"`orl convert slime /models/Qwen3-0.6B --output {Path.cwd() / 'new'}`" in plan


def test_other_module_that_is_lacking_is_named(tmp_path: Path) -> None:
    (tmp_path / "orl_broken").mkdir()
    (tmp_path / "orl_broken/probe.py").write_text("import ray_lacks_it", "utf-8")
    with pytest.raises(ConfigError, match="No module named 'ray_lacks_it'"):
        probe.ask("broken", sys.executable, [], {"PYTHONPATH": str(tmp_path)})
