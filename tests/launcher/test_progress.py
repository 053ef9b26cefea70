"""Progress says how far work is, how well it goes and how long it takes; a plain log gets few lines."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

from orl_launcher.view.progress import Course, counting, following
from orl_rollout.logs import working
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.metrics_log import MetricsRow
from rich.console import Console


class Time:
    """A clock that the test moves, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def until(true: Callable[[], bool]) -> None:
    """Wait until the follower, which looks twice a second, has made it true."""
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def row(step: int, **metrics: float) -> MetricsRow:
    return MetricsRow(step=step, kind="train", seconds=4.0, metrics=metrics)


def test_line_has_phases_and_success() -> None:
    course = Course(10)
    held_out = MetricsRow(step=0, kind="eval", seconds=1.0, metrics={"a/b/success": 0.25})
    assert course.line(held_out) == "held-out at step 0/10  success 25\u00a0%  1.0 s"
    assert course.line(row(1)) == "step 1/10  4.0 s  held-out 25\u00a0% at step 0"
    phases = {"rollout_seconds": 2.5, "train_seconds": 1.5}
    told = "step 3/10  4.0 s (rollouts 2.5 s, training 1.5 s)  held-out 25\u00a0% at step 0"
    assert course.line(row(3, **phases)) == told


def test_run_has_the_time_left(tmp_path: Path) -> None:
    clock, out, path = Time(), io.StringIO(), tmp_path / "metrics.jsonl"
    with following(path, 20, Console(file=out, width=100), clock):
        for step in (3, 5, 10):
            metrics_log.append(path, "train", step, {}, seconds=4.0)
            metrics_log.append(path, "eval", step, {}, seconds=1.0)
            until(lambda at=step: f"held-out at step {at}" in out.getvalue())
            clock.now += 14
    assert [line.partition("  1.0 s")[2] for line in out.getvalue().splitlines() if "held-out" in line] == [
        *("", "  1 min 45 s left", "  40.0 s left"),
    ]


def test_counted_work_has_a_line_at_each_tenth() -> None:
    clock, out = Time(), io.StringIO()
    with counting(Console(file=out, width=200), clock) as show:
        show(0, 40, "games")
        for done in range(1, 41):
            clock.now += 1
            show(done, 40, f"games {done}/40")
    lines = out.getvalue().splitlines()
    assert lines[0] == "games 4/40  36.0 s left"
    assert (len(lines), lines[-1]) == (10, "games 40/40")


def test_terminal_shows_what_a_run_does_now(tmp_path: Path) -> None:
    output = io.StringIO()
    with following(tmp_path / "metrics.jsonl", 3, Console(file=output, force_terminal=True, width=120)):
        until(lambda: "starting" in output.getvalue())
        with working(lambda: "evaluating 37 of 256"):
            until(lambda: "evaluating 37 of 256" in output.getvalue())


def test_silent_log_gets_a_line_each_30_seconds(tmp_path: Path) -> None:
    clock, out, path = Time(), io.StringIO(), tmp_path / "metrics.jsonl"
    with following(path, 3, Console(file=out, width=100), clock):
        clock.now += 29
        looks: list[str] = []
        with working(lambda: looks.append("look") or "loading"):
            until(lambda: len(looks) > 1)
        assert out.getvalue() == ""
        clock.now += 2
        until(lambda: out.getvalue() == "starting  31.0 s so far\n")
        with working(lambda: "evaluating 37 of 256"):
            clock.now += 30
            until(lambda: out.getvalue().endswith("evaluating 37 of 256  1 min 1 s so far\n"))
        metrics_log.append(path, "eval", 0, {}, seconds=61)
        until(lambda: "held-out at step 0/3" in out.getvalue())
        clock.now += 30
        until(lambda: out.getvalue().endswith("training  1 min 31 s so far\n"))
    assert len(out.getvalue().splitlines()) == 4


def test_slow_counted_work_has_a_line_each_30_seconds() -> None:
    clock, out = Time(), io.StringIO()
    with counting(Console(file=out, width=200), clock) as show:
        for done in range(5):
            clock.now += 20
            show(done, 1000, f"rollouts {done}")
    assert [line.partition("  ")[0] for line in out.getvalue().splitlines()] == ["rollouts 1", "rollouts 3"]
