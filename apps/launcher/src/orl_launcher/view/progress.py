"""Progress of long work: a bar on a terminal, lines in a plain log; each with an estimate of the time that is left.

A run is read from metrics.jsonl as it grows, whichever trainer writes it. The reader is a thread, because trainers take
the main one; it ends with the block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from orl_rollout.logs import waits_in
from orl_rollout.run_folder.follow import lines_of, meanwhile
from orl_rollout.run_folder.metrics_log import MetricsRow, parse_row, tally_of
from orl_rollout.run_folder.no_signal import STEPS, Cause, no_signal

from orl_launcher.view.wording import MAIN_METRICS, duration, noted, percent

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 5  # steps between lines where the output is no terminal
QUIET = 300.0  # seconds without a line, after which a plain log says that the work goes on
BAR = 16  # columns of the bar of a run
TENTHS = 10  # lines of counted work where the output is no terminal
PHASES = (("rollout_seconds", "rollouts"), ("train_seconds", "training"), ("weight_sync_seconds", "weights"))
Clock = Callable[[], float]


class Pace:
    """Estimates the time that is left from the time that work took so far. `clock` is in seconds."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, float] | None = None

    def left(self, done: float, total: float | None) -> float | None:
        """Return the seconds that are left; None at the first call, and without a `total`."""
        now = self._clock()
        if self._first is None:
            self._first = (done, now)
        before, start = self._first
        if total is None or done <= before:
            return None
        return (now - start) / (done - before) * max(0.0, total - done)


class Course:
    """A run as its rows tell it: the latest step, the latest success, the time that is left."""

    def __init__(self, steps: int | None, clock: Clock = time.monotonic) -> None:
        self._steps, self._clock = steps, clock
        self._pace = Pace(clock)
        self._told = clock()
        self._success = self._left = ""
        self._latest: deque[MetricsRow] = deque(maxlen=STEPS)
        self._silences: set[Cause] = set()
        self.step = 0

    def line(self, row: MetricsRow) -> str:
        """Return a row in one line, with the latest held-out success and the time that is left."""
        self._told = self._clock()
        words = [line_of(row, self._steps)]
        if row.kind == "eval":
            value = row.overall("success")
            told = "" if value is None else noted(percent(value), tally_of([row]))
            self._success = told and f"held-out {told} at step {row.step}"
            return words[0]
        self.step = row.step
        left = self._pace.left(row.step, self._steps)
        self._left = f"{duration(left)} left" if left else ""
        return "  ".join(filter(None, [*words, self._success, self._left]))

    def brief(self, row: MetricsRow) -> str:
        """Return the latest row for a bar. A narrow terminal cuts the end, so the time that is left comes first."""
        success = row.overall("success")
        won = "" if success is None else f"success {noted(percent(success), tally_of([row]))}"
        return "  ".join(filter(None, [_step(row, self._steps), self._left, won, self._success]))

    def silence(self, row: MetricsRow) -> str:
        """Return that the latest steps had no signal, once for each cause; "" if they had one."""
        if row.kind == "train":
            self._latest.append(row)
        found = no_signal(self._latest)
        if found is None or found.cause in self._silences:
            return ""
        self._silences.add(found.cause)
        return found.text

    def quiet(self) -> str:
        """Return a line if nothing was told for QUIET seconds, else an empty text."""
        since = self._clock() - self._told
        if since < QUIET:
            return ""
        self._told += QUIET
        return f"step {self.step + 1} goes on, {duration(since)} after the last line"


@contextmanager
def following(path: Path, steps: int | None, console: Console, clock: Clock = time.monotonic) -> Generator[None]:
    """Show the rows that are written to `path` (metrics.jsonl) while the block runs, of `steps` steps."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=BAR), TextColumn("{task.description}  {task.fields[wait]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("evaluating before training", total=steps, wait="")
        course = Course(steps, clock)

        def follow(ended: threading.Event) -> None:
            for row in _rows_of(path, ended):
                if row is None:
                    quiet = "" if console.is_terminal else course.quiet()
                    if quiet:
                        console.print(quiet, soft_wrap=True)
                    continue
                line = course.line(row)
                if row.kind == "train":
                    progress.update(bar, completed=row.step, description=course.brief(row))
                if row.kind == "eval" or not (console.is_terminal or row.step % EVERY):
                    console.print(line, style="yellow" if str(tally_of([row])) else None, soft_wrap=True)
                if silence := course.silence(row):
                    console.print(silence, style="yellow", soft_wrap=True)

        shown = waits_in(lambda text: progress.update(bar, wait=text)) if console.is_terminal else nullcontext()
        with shown, meanwhile(follow, "progress"):
            yield


def _rows_of(path: Path, ended: threading.Event) -> Iterator[MetricsRow | None]:
    """Yield each row of a batch or an evaluation as it is appended, and None after each look, until `ended`."""
    for line in lines_of(path, ended):
        row = None if line is None else parse_row(line)
        if line is None or (row is not None and row.kind != "update"):
            yield row


@contextmanager
def counting(what: str, console: Console, clock: Clock = time.monotonic) -> Generator[Callable[[int, int], None]]:
    """Show how far work is that reports `(done, total)`. Print `what` once, at the first report."""
    with _counted(console, clock) as show:
        begun: list[str] = []

        def told(done: int, total: int) -> None:
            if not begun:
                console.print(what, soft_wrap=True)
                begun.append(what)
            show(done, total, f"  {percent(done / total)}")

        yield told


@contextmanager
def rollouts_counted(
    total: int, console: Console, clock: Clock = time.monotonic
) -> Generator[Callable[[float | None], None]]:
    """Yield a function that takes each rollout's success, None for one in ERROR, and shows how far `total` are done."""
    with _counted(console, clock) as show:
        judged, done = list[float](), 0
        show(0, total, "rollouts")

        def told(success: float | None) -> None:
            nonlocal done
            done += 1
            judged.extend([] if success is None else [success])
            words = [f"rollouts {done}/{total}"]
            words += [f"success {percent(sum(judged) / len(judged))}"] if judged else []
            words += [f"{done - len(judged)} in ERROR"] if done > len(judged) else []
            show(done, total, "  ".join(words))

        yield told


@contextmanager
def _counted(console: Console, clock: Clock) -> Generator[Callable[[int, int, str], None]]:
    """Yield a function that shows `done` of `total` in words, with the time that is left.

    A terminal gets a bar, other outputs a line at each tenth.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar, pace = progress.add_task("", total=None, visible=False), Pace(clock)

        def show(done: int, total: int, words: str) -> None:
            left = pace.left(done, total)
            line = f"{words}  {duration(left)} left" if left is not None and done < total else words
            progress.update(bar, completed=done, total=total, description=line, visible=True)
            tenth = done * TENTHS // total > max(0, done - 1) * TENTHS // total
            if left is not None and tenth and not console.is_terminal:
                console.print(line, soft_wrap=True)

        yield show


def line_of(row: MetricsRow, steps: int | None) -> str:
    """Write a row in one line: `step 12/45  success 52 %  reward 0.52  turns 3.2  4.2 s (rollouts 2.1 s)`."""
    step = _step(row, steps)
    shown = [f"held-out at {step}" if row.kind == "eval" else step, *filter(None, [str(tally_of([row]))])]
    for name, form in MAIN_METRICS:
        value = row.overall(name)
        if value is not None:
            shown.append(f"{name.replace('_', ' ')} {form(value)}")
    phases = [f"{word} {duration(row.metrics[name])}" for name, word in PHASES if name in row.metrics]
    took = duration(row.seconds)
    return "  ".join([*shown, f"{took} ({', '.join(phases)})" if phases else took])


def _step(row: MetricsRow, steps: int | None) -> str:
    return f"step {row.step}/{steps}" if steps else f"step {row.step}"
