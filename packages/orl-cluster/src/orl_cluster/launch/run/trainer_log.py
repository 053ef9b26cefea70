"""Read the numbers of slime's and miles' updates from trainer.log as it grows, and add them to metrics.jsonl.

Both trainers print their numbers as Python dicts: `rollout N: {...}` before the updates of batch N, `step M: {...}`
for each update, `perf N: {...}` after them. Batch N is step N + 1 of the run. M counts updates and not batches, so an
update belongs to the batch that was printed before it. A number that is no number (nan, a tensor) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
