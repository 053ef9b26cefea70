"""A trainer that hangs is ended. One that plays, saves or starts is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from orl_cluster.launch.run.process import StallWatch
from orl_core.errors import OrlError
from orl_rollout.run_folder import metrics_log, turn_count
from orl_rollout.run_folder.turn_count import TurnCount

SECONDS = 100.0


class Attempt:
    """A run's folder, and a watch on it whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.log = folder / "trainer.log"
        self.watch = StallWatch("slime", folder, (folder / "checkpoint",), SECONDS, self.now)

    def passes(self, seconds: float, act: Callable[[], None] = lambda: None) -> None:
        """Let `seconds` pass in small steps, each with `act`."""
        ends = self.now + seconds
        while self.now < ends:
            act()
            self.now += SECONDS / 10
            self.watch.check(self.now)

    def ends(self, act: Callable[[], None] = lambda: None) -> str:
        """The error with which the attempt ends."""
        with pytest.raises(OrlError) as ended:
            self.passes(3 * SECONDS, act)
        return str(ended.value)

    def step(self, number: int, kind: metrics_log.Kind = "train") -> None:
        metrics_log.append(self.folder / "metrics.jsonl", kind, number, {"reward": 0.5}, seconds=1.0)

    def says(self) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write("Decode batch\n")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_silent_trainer_is_ended(attempt: Attempt) -> None:
    attempt.passes(SECONDS)
    told = attempt.ends()
    assert "slime" in told
    assert "Last step: none" in told
    assert "stall_timeout" in told


def test_starting_trainer_may_take_its_time(attempt: Attempt) -> None:
    attempt.passes(5 * SECONDS, attempt.says)


def test_evaluation_is_no_first_step(attempt: Attempt) -> None:
    attempt.step(0, "eval")
    attempt.passes(5 * SECONDS, attempt.says)


def test_log_lines_count_for_nothing_after_a_step(attempt: Attempt) -> None:
    attempt.step(7)
    assert "Last step: 7" in attempt.ends(attempt.says)


def test_steps_are_progress(attempt: Attempt) -> None:
    numbers = iter(range(1, 100))
    attempt.passes(5 * SECONDS, lambda: attempt.step(next(numbers)))


def test_answered_turns_are_progress(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_count, "PERIOD", 0.0)
    count = TurnCount(str(attempt.folder))
    attempt.step(1)
    attempt.passes(5 * SECONDS, count.answered)
    with count.opened("Org/Env 4f"):
        told = attempt.ends()
    assert "Open rollouts: 1 " in told
    assert "Org/Env 4f" in told


def test_growing_checkpoint_is_progress(attempt: Attempt) -> None:
    weights = attempt.folder / "checkpoint" / "iter_0000001" / "weights"
    weights.parent.mkdir(parents=True)

    def grow() -> None:
        with weights.open("ab") as file:
            file.write(bytes(1000))

    attempt.step(1)
    attempt.passes(5 * SECONDS, grow)
    attempt.ends()


def test_earlier_attempt_leaves_no_open_rollouts(tmp_path: Path) -> None:
    with TurnCount(str(tmp_path)).opened("Org/Env of a dead process"):
        metrics_log.append(tmp_path / "metrics.jsonl", "train", 3, {}, seconds=1.0)
        told = Attempt(tmp_path).ends()
    assert "Open rollouts: 0." in told
    assert "Last step: none" in told, "steps of the attempt before do not count"
