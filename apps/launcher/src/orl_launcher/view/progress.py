"""Progress of long work: a bar on a terminal, lines in a plain log; each with an estimate of the time that is left.

A run is read from metrics.jsonl as it grows, whichever trainer writes it. The reader is a thread, because trainers take
the main one; it ends with the block.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from orl_rollout.edge.files import lines_of, meanwhile
from orl_rollout.logs import work
from orl_rollout.run_folder.judges import STEPS, no_signal
from orl_rollout.run_folder.metrics_log import MetricsRow, parse_row, tally_of
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from orl_launcher.view.wording import MAIN_METRICS, duration, noted, percent

EVERY = 5  # steps between lines where the output is no terminal
SILENT = 30.0  # seconds without a line, after which such an output gets one
BAR = 16  # columns of the bar
TENTHS = 10  # lines of counted work where the output is no terminal
PHASES = (("rollout_seconds", "rollouts"), ("train_seconds", "training"), ("weight_sync_seconds", "weights"))
Clock = Callable[[], float]


class Course:
    """A run as its rows tell it, with the latest held-out success."""

    def __init__(self, steps: int | None) -> None:
        self._steps, self._success = steps, ""
        self._trained = deque[MetricsRow](maxlen=STEPS)
        self._said: set[object] = set()

    def line(self, row: MetricsRow) -> str:
        """Return a row in one line, with the latest held-out success.

        `step 12/45  success 52 %  reward 0.52  turns 3.2  4.2 s (rollouts 2.1 s)  held-out 60 % at step 10`
        """
        held_out, took = row.kind == "eval", duration(row.seconds)
        step = f"step {row.step}/{self._steps}" if self._steps else f"step {row.step}"
        values = ((name, form, row.overall(name)) for name, form in MAIN_METRICS)
        shown = [f"{name.replace('_', ' ')} {form(value)}" for name, form, value in values if value is not None]
        phases = ", ".join(f"{word} {duration(row.metrics[name])}" for name, word in PHASES if name in row.metrics)
        words = [f"held-out at {step}" if held_out else step, str(tally_of([row])), *shown]
        words.append(f"{took} ({phases})" if phases else took)
        if held_out:
            success = row.overall("success")
            known = "" if success is None else noted(percent(success), tally_of([row]))
            self._success = known and f"held-out {known} at step {row.step}"
        else:
            words.append(self._success)
        return "  ".join(filter(None, words))

    def warning(self, row: MetricsRow) -> str:
        """Return, once for each cause, that the latest steps had no signal."""
        if row.kind == "train":
            self._trained.append(row)
        silence = no_signal(self._trained)
        if silence is None or silence.cause in self._said:
            return ""
        self._said.add(silence.cause)
        return silence.text


@contextmanager
def following(path: Path, steps: int | None, console: Console, clock: Clock = time.monotonic) -> Generator[None]:
    """Show the rows that are written to `path` (metrics.jsonl) while the block runs, of `steps` steps.

    Between them a terminal shows the work of this process, and other outputs get a line each SILENT seconds.
    """
    course, begun = Course(steps), clock()
    with _bar(console, clock) as (progress, bar):
        progress.update(bar, total=steps, visible=True)

        def follow(ended: threading.Event) -> None:
            latest, idle = begun, "starting"
            for written in lines_of(path, ended):
                if written is None:
                    now = work() or idle
                    progress.update(bar, wait=now)
                    if not console.is_terminal and clock() - latest >= SILENT:
                        latest = clock()
                        console.print(f"{now}  {duration(latest - begun)} so far")
                    continue
                row = parse_row(written)
                if row is None or row.kind == "update":
                    continue
                line, idle = course.line(row), "training"
                if row.kind == "train":
                    progress.update(bar, completed=row.step, description=line)
                if row.kind == "eval" or not (console.is_terminal or row.step % EVERY):
                    latest = clock()
                    console.print(line + _left(progress), style="yellow" if str(tally_of([row])) else None)
                if warning := course.warning(row):
                    console.print(warning, style="yellow")

        with meanwhile(follow, "progress"):
            yield


@contextmanager
def counting(console: Console, clock: Clock = time.monotonic) -> Generator[Callable[[int, int, str], None]]:
    """Yield a function that shows `done` of `total` in words, with the time that is left.

    A terminal gets a bar, other outputs a line at each tenth, and each SILENT seconds.
    """
    latest = clock()
    with _bar(console, clock) as (progress, bar):

        def show(done: int, total: int, words: str) -> None:
            nonlocal latest
            progress.update(bar, completed=done, total=total, description=words, visible=True)
            tenth = done * TENTHS // total > max(0, done - 1) * TENTHS // total
            if (tenth or clock() - latest >= SILENT) and not console.is_terminal:
                latest = clock()
                console.print(words + _left(progress))

        yield show


@contextmanager
def _bar(console: Console, clock: Clock) -> Generator[tuple[Progress, TaskID]]:
    """Yield a bar, hidden until it is updated; an output that is no terminal shows none."""
    words = (TextColumn("{task.fields[wait]}"), TextColumn("{task.description}"))  # a narrow terminal cuts the end
    columns = (BarColumn(bar_width=BAR), TimeElapsedColumn(), TimeRemainingColumn(), *words)
    progress = Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=math.inf,
        get_time=clock,
    )
    with progress:
        yield progress, progress.add_task("", total=None, visible=False, wait="")


def _left(progress: Progress) -> str:
    """Return the time that is left in words, "" if it is not known."""
    left = progress.tasks[0].time_remaining
    return f"  {duration(left)} left" if left else ""
