"""Reads the numbers of slime's and miles' updates from trainer.log while it grows, and adds them to metrics.jsonl.

Both trainers print their numbers as Python dicts: `rollout N: {...}` before the updates of batch N, `step M: {...}`
for each update, `perf N: {...}` after them. Batch N is step N + 1 of the run. M counts updates and not batches, so an
update belongs to the batch that was printed before it. A number that is no number (nan, a tensor) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Event

from orl_core.errors import OrlError
from orl_rollout.edge.files import lines_of, meanwhile
from orl_rollout.gpus import gpu_usage
from orl_rollout.logs import logger_of
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.metrics_log import mean, with_common_names

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


class Updates:
    """The numbers of the updates of one batch after another, from the lines of a log."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._steps: dict[int, dict[str, float]] = {}
        self._others: dict[str, float] = {}

    def read(self, line: str) -> Iterator[tuple[int, dict[str, float]]]:
        """Take one line. Yield the step and the metrics of a batch that it completes."""
        match = _LINE.search(line)
        if match is None:
            return
        kind, number, numbers = match[1], int(match[2]), numbers_of(match[3])
        if kind == "rollout" and "rollout/response_lengths" in numbers:
            yield from self.end()
            self._batch = number
            self._others = {name: numbers[name] for name in NAMES if name in numbers}
        elif kind == "step" and self._batch is not None:
            self._steps[number] = {name: value for name, value in numbers.items() if name != "train/step"}
        elif kind == "perf" and number == self._batch and "perf/train_time" in numbers:
            self._others |= numbers
            yield from self.end()

    def end(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the step and the metrics of the last batch, if it was not complete."""
        if self._batch is not None and (self._steps or self._others):
            names = dict.fromkeys(name for step in self._steps.values() for name in step)
            means = {name: mean(step.get(name) for step in self._steps.values()) for name in names}
            logged = {name: value for name, value in means.items() if value is not None} | self._others
            yield self._batch + 1, with_common_names(logged, NAMES)
        self._batch, self._steps, self._others = None, {}, {}


def numbers_of(printed: str) -> dict[str, float]:
    """Return the numbers in the text of a dict, without its braces."""
    return {name: float(value) for name, value in _NUMBER.findall(printed)}


def followed(
    log: Path, metrics: Path, *, start: int = 0, judge: Callable[[dict[str, float]], None] = lambda _: None
) -> AbstractContextManager[None]:
    """Add the updates that `log` reports after the byte `start` to the file `metrics`, while the block runs.

    `judge` gets the numbers of each step. The use of this machine's GPUs since the step before is added to them.
    """
    return meanwhile(partial(_follow, log, metrics, start, judge), "orl-trainer-log")


def _follow(log: Path, metrics: Path, start: int, judge: Callable[[dict[str, float]], None], ended: Event) -> None:
    updates = Updates()
    with gpu_usage() as usage:
        for line in lines_of(log, ended, start):
            for step, numbers in () if line is None else updates.read(line.decode("utf-8", "replace")):
                _add(metrics, step, numbers | usage())
                judge(numbers)
        for step, numbers in updates.end():
            _add(metrics, step, numbers | usage())


def _add(metrics: Path, step: int, numbers: dict[str, float]) -> None:
    """Add an update to the file `metrics`. A full disk is a warning: the trainer continues."""
    try:
        metrics_log.append(metrics, "update", step, numbers, seconds=0.0)
    except OrlError as fault:
        logger.warning("%s", fault)
