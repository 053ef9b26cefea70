"""`orl train slime` runs to its end, or does not begin, in a second environment that has slime (a stand-in)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from orl_rollout.run_folder.record import read_record

from tests.slime.test_launch import checkpoint
from tests.two_pythons import planning


def trained(python: str, working: Path, *argv: str) -> int:
    """The exit code of a run on no GPU at all, in the stand-in."""
    checkpoint(working / "model")
    return planning.trained("slime", python, working, *argv)


def attempts_of(working: Path) -> list[list[str]]:
    """The arguments of each attempt of the run."""
    return json.loads((working / "runs/run/attempts.json").read_text(encoding="utf-8"))


def values_of(attempts: list[list[str]], option: str) -> list[str]:
    """The value of an option in each attempt, which names it once."""
    assert all(argv.count(option) == 1 for argv in attempts)
    return [argv[argv.index(option) + 1] for argv in attempts]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_run_without_gpu_memory_recovers_with_less(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    python: str,
    working: Path,
) -> None:
    """The second attempt begins again, for want of a checkpoint; the third continues from that of the second."""
    monkeypatch.setenv("STAND_IN_ENDS", "recovers")
    other = checkpoint(working / "other") / "before"
    (other / "iter_0000040").mkdir(parents=True)
    (other / "latest_checkpointed_iteration.txt").write_text("40", encoding="utf-8")
    argv = ["--model-args", "qwen3-0.6B", "--load", str(other), "--", "--finetune", "--eps-clip", "0.3"]
    assert trained(python, working, *argv) == 0
    attempts, folder = attempts_of(working), working / "runs" / "run"
    assert values_of(attempts, "--max-tokens-per-gpu") == ["8192", "4096", "4096"]
    assert values_of(attempts, "--rollout-max-context-len") == ["8192", "8192", "4096"]
    assert values_of(attempts, "--load") == [str(other), str(other), str(folder / "checkpoint")]
    assert ["--finetune" in argv for argv in attempts] == [True, True, False]
    assert values_of(attempts, "--eps-clip") == ["0.3"] * 3
    assert values_of(attempts, "--prompt-data") == [attempts[0][attempts[0].index("--prompt-data") + 1]] * 3
    record = read_record(folder)
    assert [(one.option, one.after, one.checkpoint) for one in record.recoveries] == [
        ("--max-tokens-per-gpu", "4096", None),
        ("--rollout-max-context-len", "4096", 1),
    ]
    assert len(record.points) == 3, "a step that was made again counts once"
    assert record.finished
    assert record.summary["command"][2:] == attempts[-1]
    assert (folder / "trainer.log").read_text(encoding="utf-8").count("trained\n") == 3
    page = (folder / "report.html").read_text(encoding="utf-8")
    for recovery in record.recoveries:
        assert recovery.text in caplog.text
        assert recovery.text in page


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_run_goes_on_after_the_death_of_an_engine(monkeypatch: pytest.MonkeyPatch, python: str, working: Path) -> None:
    """A colocated slime ended so on two H100s, when one of two engines got a SIGKILL."""
    monkeypatch.setenv("STAND_IN_ENDS", "engine dies")
    assert trained(python, working, "--model-args", "qwen3-0.6B") == 0
    attempts, folder = attempts_of(working), working / "runs" / "run"
    assert values_of(attempts, "--load") == [str(folder / "checkpoint")] * 3
    record = read_record(folder)
    assert [(one.attempt, one.option, one.checkpoint) for one in record.recoveries] == [(1, "", 0), (2, "", 1)]
    assert "engine" in record.recoveries[0].text


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_failure_after_a_recovery_ends_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    """The log still holds the lack of memory of the attempt before, which is over."""
    monkeypatch.setenv("STAND_IN_ENDS", "recovers, then fails")
    argv = ["--model-args", "qwen3-0.6B", "--", "--max-tokens-per-gpu", "9000"]
    assert trained(python, working, *argv) == 1
    attempts = attempts_of(working)
    assert values_of(attempts, "--max-tokens-per-gpu") == ["9000", "9000"], "what the user set stays"
    assert len(set(values_of(attempts, "--rollout-max-context-len"))) == 2
    told = capsys.readouterr().err
    assert "a fault of another kind" in told
    assert "lower memory use" not in told


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_an_interrupted_run_ends_its_trainer_and_keeps_what_there_is(
    monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    monkeypatch.setenv("STAND_IN_ENDS", "interrupted")
    assert trained(python, working, "--model-args", "qwen3-0.6B", "--", "--eps-clip", "0.123") == 130
    summary = json.loads((working / "runs/run/summary.json").read_text(encoding="utf-8"))
    assert (summary["interrupted"], summary["steps"]) == (True, 1)
    seen = json.loads((working / "runs/run/seen.json").read_text(encoding="utf-8"))
    with pytest.raises(ProcessLookupError):
        os.kill(seen["process"], 0)


@pytest.mark.usefixtures("cluster")
def test_cluster_lacking_a_secret_is_refused_before_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    monkeypatch.delenv("OPENREWARD_API_KEY")
    assert trained(python, working, "--model-args", "qwen3-0.6B") == 1
    assert "no OPENREWARD_API_KEY: start Ray there with it in the environment" in capsys.readouterr().err
    assert not (working / "runs/run/seen.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_login_at_weights_and_biases_does_for_every_cluster(
    monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    login = working / "netrc"
    login.write_text("machine api.wandb.ai login user password hush-hush\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(login))
    assert trained(python, working, "--model-args", "qwen3-0.6B", "--wandb-mode", "online") == 0
