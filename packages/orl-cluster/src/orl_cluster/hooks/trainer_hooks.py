"""Hooks that trainers call with the same arguments: rewards, advantages, the dynamic filter, and logs.

An adapter names its trainer's modules in a TrainerHooks and exports the bound methods. The trainer has loaded these
modules before it calls us: they are looked up, never imported. Both log hooks return False, so that the trainer logs
its own numbers in addition to ours.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import msgspec
from msgspec import Struct
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.logs import logger_of
from orl_rollout.results.metrics import RolloutStats, evaluation_metrics, training_metrics
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.judges import STEPS

from orl_cluster.hooks.group_scores import flat, rollout_of
from orl_cluster.hooks.reward import advantages, centres, is_final, reason_to_drop, reward_of
from orl_cluster.hooks.samples import STATS
from orl_cluster.hooks.worker import run_in_progress, run_of

logger = logger_of("orl")


class TrainerHooks(Struct, frozen=True, kw_only=True):
    """Hooks of the trainer `package`.

    `tracking` and `metric_utils` are the modules of its own logging, under the names that its versions give them.
    `unhook` takes the path of our reward hook out of a sample. `takes_turns` tells from the trainer's arguments that it
    reads advantages of turns.
    """

    package: str
    tracking: tuple[str, ...]
    metric_utils: tuple[str, ...]
    unhook: Callable[[Any], None]
    takes_turns: Callable[[Any], bool] = lambda _: False

    def log_rollout(
        self, rollout_id: int, args: Any, samples: Sequence[Any], rollout_extra_metrics: Any, rollout_time: float
    ) -> bool:
        """`--custom-rollout-log-function-path`: log one training batch, step `rollout_id + 1` of the run.

        Raises:
            RunAborted: `generate` ended the run, and the trainer went on without its exception.
        """
        run = run_in_progress(args)
        run.batches = rollout_id + 1
        run.first = rollout_id if run.first is None else run.first
        interval = getattr(args, "update_weights_interval", None) or 1
        age = staleness_of(flat(samples), rollout_id, interval, first=run.first)
        more = {} if age is None else {"staleness": age}
        stats = _stats_in(samples)
        grouped = centres(args) and all(map(is_final, flat(samples)))
        metrics = training_metrics(stats, groups=grouped)
        self._log(args, (rollout_id, rollout_id + 1), "rollout", {**metrics, **more} if metrics else {}, rollout_time)
        return False

    def log_eval(self, rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None) -> bool:
        """`--custom-eval-rollout-log-function-path`: log one evaluation of the held-out tasks.

        Raises:
            RunAborted: as `log_rollout`.
        """
        run = run_in_progress(args)
        stats = [entry for one in data.values() for entry in _stats_in(one.get("samples") or ())]
        # Evaluated rollouts run side by side: they take as long as the longest of them.
        seconds = max((entry.generation_seconds + entry.environment_seconds for entry in stats), default=0.0)
        # Trainers give the evaluation before all training the number of the first batch. The count may be a batch
        # ahead, where the next batch is played meanwhile.
        step = min(run.batches or rollout_id, rollout_id + 1)
        self._log(args, (rollout_id, step), "eval", evaluation_metrics(stats), seconds)
        return False

    def has_signal(self, args: Any, samples: list[Any], **_: Any) -> Any:
        """`--dynamic-sampling-filter-path`: keep a group if two of its rollouts train and their rewards differ.

        The answer is the trainer's own, with the reason; a bool if no trainer is loaded. A dead environment cannot
        make the trainer sample for ever: the circuit breaker in `generate` ends the run. Tasks without a signal can, so
        many dropped groups in a row are warned about.
        """
        reason = reason_to_drop(args, samples)
        run = run_of(args)
        run.dropped = 0 if reason is None else run.dropped + 1
        if run.dropped == STEPS * getattr(args, "rollout_batch_size", 1):
            logger.warning(
                "the dynamic filter dropped %d groups in a row, the latest for %s: no step begins without a group "
                "that has a signal. Look at the episodes, or train on other tasks",
                run.dropped,
                reason,
            )
        own = self._module("rollout.filter_hub.base_types")
        return own.DynamicFilterOutput(keep=reason is None, reason=reason) if own else reason is None

    async def reward(self, args: Any, sample: Any, **_: Any) -> Any:
        """`--custom-rm-path`: return the reward that `generate` set; for a list of samples, a list of rewards.

        A row that is no task is scored by the trainer's own reward model.
        """
        if isinstance(sample, list):
            return [await self.reward(args, member) for member in cast("list[Any]", sample)]
        own = self._module("rollout.rm_hub")
        if sample.reward is not None or own is None:
            return reward_of(args, sample)
        args, sample = copy.copy(args), copy.copy(sample)
        args.custom_rm_path = None  # either may have led here
        self.unhook(sample)
        return await own.async_rm(args, sample)

    def post_process(self, args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
        """`--custom-reward-post-process-path`: return raw rewards and advantages; see `orl_cluster.hooks.reward`."""
        return advantages(args, samples, takes_turns=self.takes_turns(args))

    def aborted(self, args: Any) -> bool:
        """Return the trainer's abort flag."""
        own = self._module("rollout.sglang_rollout")
        return bool(own and own.GenerateState(args).aborted)

    async def play(self, args: Any, sample: Any, sampling: Mapping[str, Any]) -> None:
        """Let the trainer play a row of its own.

        Raises:
            ConfigError: the row is no task, and the trainer is not loaded.
        """
        await self.loaded("rollout.sglang_rollout", sample).generate(args, sample, sampling)

    def loaded(self, name: str, sample: Any) -> Any:
        """Return the trainer's module `name`, which the row of `sample` needs.

        Raises:
            ConfigError: it is not loaded.
        """
        if (module := self._module(name)) is None:
            needed = f"`{self.package}.{name}`"
            raise ConfigError(
                f"row {sample.index}: its metadata is no task of `orl prepare`, and {needed} is not there"
            )
        return module

    def _module(self, *names: str) -> Any:
        """Return the first of the trainer's modules `names` that is loaded, or None."""
        modules = (sys.modules.get(f"{self.package}.{name}") for name in names)
        return next(filter(None, modules), None)

    def _log(
        self,
        args: Any,
        numbers: tuple[int, int],
        kind: str,
        metrics: Mapping[str, float],
        seconds: float,
    ) -> None:
        """Log `metrics` by the trainer's tracking, on its own axis, and to metrics.jsonl.

        `numbers` are the trainer's number of the batch and the step.
        """
        rollout_id, step = numbers
        named = {f"{kind}/{name}": value for name, value in metrics.items()}
        logger.info("orl %s %d: %s", kind, rollout_id, named)
        tracking, metric_utils = self._module(*self.tracking), self._module(*self.metric_utils)
        if tracking and metric_utils and named:
            with boundary(OrlError, "the trainer's tracking"):
                axis = metric_utils.compute_rollout_step(args, rollout_id)
                tracking.log(args, {**named, f"{kind}/step": axis}, step_key=f"{kind}/step")
        if named and (folder := getattr(args, "orl_folder", None)):
            path = Path(folder) / "metrics.jsonl"
            metrics_log.append(path, "eval" if kind == "eval" else "train", step, metrics, seconds=seconds)


def _stats_in(samples: Iterable[Any]) -> list[RolloutStats]:
    """Return the numbers that `generate` left in `samples`. Several samples of one rollout count once."""
    stats = {rollout_of(sample): sample.metadata[STATS] for sample in flat(samples)[::-1] if STATS in sample.metadata}
    return [msgspec.convert(stats[rollout], RolloutStats) for rollout in reversed(stats)]


def staleness_of(samples: Iterable[Any], trained: int, interval: int, *, first: int = 0) -> float | None:
    """Return the mean number of batches that training was ahead of the weights that sampled `samples`.

    `trained` counts the batches of the run that were trained, `first` those before the trainer started, `interval`
    those between two updates of the engine's weights. The mean is taken over generations. None where a version is
    missing, is no number or is newer than training.

    slime and miles number the weights of their engines from 1, the weights that a process begins with, and add 1 at
    each update. They update after every batch whose number, from 1, is a multiple of the interval, also in a resumed
    run.
    """
    versions = [str(version) for sample in samples for version in getattr(sample, "weight_versions", None) or ()]
    if not versions or not all(version.isdecimal() for version in versions):
        return None
    ages = [trained - max(first, (first // interval + int(version) - 1) * interval) for version in versions]
    return fmean(ages) if min(ages) >= 0 else None
