"""A trainer's process: its log, the numbers in it, what its end says, and the watch for a hang or weights that drift.

slime and miles print their numbers as Python dicts: `rollout N: {...}` before the updates of batch N, `step M: {...}`
for each update, `perf N: {...}` after them. Batch N is step N + 1 of the run. M counts updates and not batches, so an
update belongs to the batch that was printed before it. A number that is no number (nan, a tensor) is left out.

A Watch ends what continues without an error: weights that do not arrive, and a hang.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from threading import Event

from msgspec import Struct
from orl_core.errors import OrlError
from orl_rollout.edge import children, interrupt
from orl_rollout.edge.children import running
from orl_rollout.edge.files import lines_of, meanwhile
from orl_rollout.gpus import gpu_usage
from orl_rollout.logs import logger_of
from orl_rollout.run_folder import metrics_log, turn_count
from orl_rollout.run_folder.judges import DIFFERENCE, LogprobDrift
from orl_rollout.run_folder.metrics_log import mean, with_common_names

from orl_cluster.launch.command.command import Command
from orl_cluster.launch.command.engine_weights import samples_fresh
from orl_cluster.launch.command.trainer_defaults import critic_folder

logger = logger_of("orl")
NAMES = {
    "train/loss": "loss",
    "train/kl_loss": "kl",
    "train/ppo_kl": "policy_kl",
    "train/entropy_loss": "entropy",
    "rollout/entropy": "entropy",  # of miles, which logs 0 as train/entropy_loss if no loss needs it
    "train/grad_norm": "grad_norm",
    "train/lr-pg_0": "learning_rate",
    "train/pg_clipfrac": "clip_fraction",
    "train/train_rollout_logprob_abs_diff": "logprob_difference",
    "rollout/response_lengths": "response_tokens",
    "perf/train_wait_time": "rollout_seconds",
    "perf/train_time": "train_seconds",
    "perf/update_weights_time": "weight_sync_seconds",
    "perf/step_time": "step_seconds",
}
_LINE = re.compile(r"(?<![\w-])(?<!orl )(rollout|step|perf) (\d+): \{(.*)\}")
_NUMBER = re.compile(r"'([^']+)': (?:np\.float\d+\()?([-+]?\d[\d.]*(?:e[-+]?\d+)?)(?=[,)]|$)")


def updates_in(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the metrics of one batch after another. The last one may be incomplete."""
    batch: int | None = None
    steps: list[dict[str, float]] = []
    others: dict[str, float] = {}
    for match in filter(None, map(_LINE.search, lines)):
        kind, number = match[1], int(match[2])
        numbers = {name: float(value) for name, value in _NUMBER.findall(match[3])}
        if kind == "rollout" and "rollout/response_lengths" in numbers:
            if batch is not None:
                yield batch + 1, _joined(steps, others)
            batch, steps, others = number, [], {name: numbers[name] for name in NAMES if name in numbers}
        elif kind == "step" and batch is not None:
            steps.append({name: value for name, value in numbers.items() if name != "train/step"})
        elif kind == "perf" and number == batch and "perf/train_time" in numbers:
            yield number + 1, _joined(steps, others | numbers)
            batch = None
    if batch is not None:
        yield batch + 1, _joined(steps, others)


def _joined(steps: Sequence[Mapping[str, float]], others: dict[str, float]) -> dict[str, float]:
    """Return the means over the updates of a batch, and its other numbers."""
    names = dict.fromkeys(name for step in steps for name in step)
    means = {name: mean(step.get(name) for step in steps) for name in names}
    return with_common_names({name: value for name, value in means.items() if value is not None} | others, NAMES)


def followed(
    log: Path, metrics: Path, *, start: int = 0, judge: Callable[[dict[str, float]], None] = lambda _: None
) -> AbstractContextManager[None]:
    """Add the updates that `log` reports after the byte `start` to the file `metrics`, while the block runs.

    `judge` gets the numbers of each step. The use of this machine's GPUs since the step before is added to them.
    """
    return meanwhile(partial(_follow, log, metrics, start, judge), "orl-trainer-log")


def _follow(log: Path, metrics: Path, start: int, judge: Callable[[dict[str, float]], None], ended: Event) -> None:
    lines = (line.decode("utf-8", "replace") for line in lines_of(log, ended, start) if line is not None)
    with gpu_usage() as usage:
        for step, numbers in updates_in(lines):
            try:
                metrics_log.append(metrics, "update", step, numbers | usage(), seconds=0.0)
            except OrlError as fault:  # a full disk: the trainer continues
                logger.warning("%s", fault)
            judge(numbers)


LOG = "trainer.log"  # in the run's folder
LOOK_SECONDS = 30.0  # between two looks at the files
END_BYTES = 100_000  # of a log that are read for what went wrong
LINE_CHARACTERS = 400
MEMORY = ("OutOfMemoryError", "OOM-killed", "Out of memory")
GPU_MEMORY = re.compile(
    r"torch(?:\.cuda)?\.OutOfMemoryError|(?:CUDA|HIP) (?:error: )?out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
ENGINE = re.compile(r"^\s*(?:\x1b\[\d+m)?\(\w*SGLang\w*[ )]")  # what Ray writes before a line of an engine
# What Ray says of a node that is gone: `address` is known where the raylet of another node reports it.
LOST_NODE = re.compile(r"address: (?P<address>\S+) and node name: .* marked dead|because its node has died")
UNEQUAL = "check tensor equality failed"  # SGLang's words
# What Ray says if an engine's server refuses its actor, ends before the answer, or does not flush its cache.
ENGINE_GONE = re.compile(r"RayTaskError\((?:Connection|Timeout)Error\): .*ray::SGLangEngine\.\w+\(\)")
# The second is argparse's.
_EXCEPTION = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception|Aborted|Interrupt)(?:: |$)|^\S+: error: argument ")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path,
    hidden: Iterable[str] = (),
    check: Callable[[], None] = interrupt.check,
) -> int:
    """Run `command`, append its output to `log` without the values of the variables `hidden`, return the exit code.

    It leads a process group of its own, which is ended when this function is left. `check` is called again and again
    while it runs, and may raise.

    Raises:
        Interrupted: a signal came.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in a script's `orl &`: the trainer inherits it
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[ignored:]
    with running(command, environment, log=log, hidden=hidden, signals=signals) as process:
        return children.exit_code(process, check)


class Failure(Struct, frozen=True, kw_only=True):
    """The end of a log. `error` is its last line that names an exception, else its last line.

    `lacks_memory` tells that memory ran out; `lacks_gpu_memory` that it was a GPU's; `in_engine` that it was in an
    engine and not in training. `engine_gone` tells that only an engine died. `lost_node` is the address of a node that
    Ray lost, or "a node" if Ray does not say. `unequal_weights` tells that engines did not hold the weights that they
    were sent.
    """

    error: str
    lacks_memory: bool = False
    lacks_gpu_memory: bool = False
    in_engine: bool = False
    engine_gone: bool = False
    lost_node: str = ""
    unequal_weights: bool = False


def failure_of(log: Path, *, start: int = 0) -> Failure:
    """Return what the end of a log says, as far as it was written after the byte `start`."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - END_BYTES))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    named = [line for line in lines if _EXCEPTION.search(line)]
    last = (named or lines or ["it said nothing"])[-1]
    gpu = [line for line in lines if GPU_MEMORY.search(line)]
    lost = [match["address"] or "a node" for line in lines if (match := LOST_NODE.search(line))]
    return Failure(
        error=" ".join(last.split())[:LINE_CHARACTERS],
        lacks_memory=bool(gpu) or any(sign in line for line in lines for sign in MEMORY),
        lacks_gpu_memory=bool(gpu),
        in_engine=bool(gpu) and all(ENGINE.match(line) for line in gpu),
        engine_gone=_ended_by_engine(lines) and not lost and not gpu,
        lost_node=next(iter(lost), ""),
        unequal_weights=any(UNEQUAL in line for line in lines),
    )


def _ended_by_engine(lines: list[str]) -> bool:
    """Tell whether the trainer's last traceback, which no prefix of Ray marks, came from a call of a dead engine."""
    begins = max((at for at, line in enumerate(lines) if line.startswith("Traceback ")), default=len(lines))
    return any(ENGINE_GONE.search(line) for line in lines[begins:])


class Watch:
    """The judges of one attempt. `judge` may be called on another thread than `check`."""

    def __init__(self, command: Command) -> None:
        request = command.request
        self._fresh = samples_fresh(command.argv, asynchronous=request.cluster.asynchronous)
        self._drift = LogprobDrift(request.trainer.max_logprob_difference)
        saved = (request.save, critic_folder(str(request.save)))
        seconds = request.cluster.stall_timeout
        self._stall = StallWatch(request.installation.trainer, request.run.folder, saved, seconds, time.monotonic())

    def judge(self, numbers: dict[str, float]) -> None:
        """Take the numbers of a step."""
        if DIFFERENCE in numbers and self._fresh:
            self._drift.add(numbers[DIFFERENCE])

    def check(self) -> None:
        """Raise an OrlError if engines do not sample from the weights that train, or the trainer hangs."""
        self.check_weights()
        self._stall.check(time.monotonic())

    def check_weights(self) -> None:
        """Raise an OrlError if the engines do not sample from the weights that train."""
        if self._drift.fault:
            raise OrlError(self._drift.fault)


class StallWatch:
    """Watches one attempt of `trainer` in its run's `folder`, from the time `now` on, of a monotonic clock.

    Progress is a step, an answered turn, or a checkpoint in one of the folders `saved` whose size changes. A line in
    the log is progress before the first step alone: engines and Ray print for ever, and a trainer that loads a model
    has nothing else to show.
    """

    def __init__(self, trainer: str, folder: Path, saved: Sequence[Path], seconds: float, now: float) -> None:
        self._trainer, self._folder, self._saved, self._seconds = trainer, folder, saved, seconds
        turn_count.clear(folder)
        self._before = len(self._steps())
        self._seen = self._progress()
        self._moved = self._looked = now

    def check(self, now: float) -> None:
        """Look at the files, if it is time again. Raise an OrlError if nothing moved for too long."""
        if now - self._looked < min(LOOK_SECONDS, self._seconds / 20):
            return
        self._looked = now
        if (seen := self._progress()) != self._seen:
            self._seen, self._moved = seen, now
        elif now - self._moved > self._seconds:
            raise OrlError(self._message())

    def _steps(self) -> list[int]:
        return [row.step for row in metrics_log.read(self._folder / "metrics.jsonl") if row.kind != "eval"]

    def _progress(self) -> tuple[int, int, int, int]:
        """Return numbers of which one changes with every progress."""
        steps = len(self._steps()) - self._before
        answered = turn_count.read(self._folder).answered
        files = (Path(inside, name) for folder in self._saved for inside, _, names in os.walk(folder) for name in names)
        return steps, answered, sum(map(_size, files)), 0 if steps else _size(self._folder / LOG)

    def _message(self) -> str:
        turns, steps = turn_count.read(self._folder), self._steps()[self._before :]
        names = f" (the oldest: {', '.join(turns.oldest)})" if turns.open else ""
        return (
            f"{self._trainer} hangs: no step, no answered turn and no growing checkpoint in {self._seconds:g} s. "
            f"Last step: {steps[-1] if steps else 'none'}. Open rollouts: {turns.open}{names}. "
            "If its steps take longer, raise `trainer.cluster.stall_timeout`"
        )


def _size(path: Path) -> int:
    with suppress(OSError):  # it is not there, or a trainer removes it at this moment
        return path.stat().st_size if path.is_file() else 0
    return 0
