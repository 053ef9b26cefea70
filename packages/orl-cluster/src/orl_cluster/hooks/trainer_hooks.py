"""Hooks that trainers call alike: rewards, advantages, scores of groups, dynamic filter, staleness, logs.

An adapter names its trainer's modules in a TrainerHooks and exports the bound methods. The trainer has loaded these
modules before it calls us: they are looked up, never imported. Both log hooks return False, so that the trainer logs
its own numbers in addition to ours.

A trainer's own normalisation may take an uneven batch for one group, or let failures into the baseline. Its own filter
may not look into rollouts that were split into several samples, and takes a failure's reward for a reward. `generate`
never waits for siblings, so the environment compares whole groups here. The trainer calls us, synchronous, on a thread
whose loop may be running: the scoring has a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import msgspec
from msgspec import Struct
from orl_core import ConfigError, Message, OrlError, RunConfig, boundary, group_rewards
from orl_core.estimators import estimator_named
from orl_rollout.edge.interrupt import on_thread
from orl_rollout.logs import logger_of
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.metrics import SMALLEST_DIFFERENCE, RolloutStats, evaluation_metrics, training_metrics
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.judges import STEPS
from orl_rollout.runtime.group_scores import Group, metrics_of_groups, score_groups
from orl_rollout.training.rows import Member, advantages_of

from orl_cluster.hooks.samples import (
    OFFERED,
    SCORED,
    STATS,
    TURNS,
    TurnAdvantages,
    flat,
    rollout_of,
    store_conversation,
    task_of,
)
from orl_cluster.hooks.worker import config_of, run_in_progress, run_of

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
        metrics = training_metrics(stats, groups=centres(args) and all(map(is_final, flat(samples))))
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
        """`--custom-reward-post-process-path`: return raw rewards and advantages; see `advantages`."""
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


def reward_of(args: Any, sample: Any) -> float:
    """Return the reward of a sample, the one of `--reward-key` if it has several; 0.0 if it has no reward."""
    reward: Any = sample.reward
    value: Any = cast("dict[str, Any]", reward)[args.reward_key] if isinstance(reward, dict) else reward
    return 0.0 if value is None else float(value)


def trainable(sample: Any) -> bool:
    """Tell whether the trainer will train on `sample`. It reads a missing mask as ones."""
    mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
    return not sample.remove_sample and any(mask)


def advantages(args: Any, samples: list[Any], *, takes_turns: bool) -> tuple[list[float], list[float]]:
    """Return raw rewards, and rewards as the estimator wants them, for N samples in the trainer's order.

    Groups are whole here for the first time, so the environment compares them here (`group_reward`). Samples that do
    not train are left out of their group's baseline and get 0. A rollout that was split into several samples (equal
    `rollout_id`) counts once. With `turn_advantages`, each of the rewards is a TurnAdvantages. `takes_turns` tells that
    the trainer reads them.

    Raises:
        ConfigError: orl does not know the estimator, or `turn_advantages`, and the trainer does not read them.
    """
    raw = compare(args, samples, [reward_of(args, sample) for sample in samples])
    estimator = estimator_named(getattr(args, "advantage_estimator", "grpo"))  # the default of every trainer
    center = centres(args)
    scale = center and estimator.scale and args.grpo_std_normalization
    if not takes_turns and any(TURNS in sample.metadata for sample in samples):
        raise ConfigError("the trainer was started without orl's function for `turn_advantages`: use orl train")
    if not center and not takes_turns:
        return raw, list(raw)
    members = [
        Member(
            group=sample.group_index,
            rollout_id=rollout_of(sample),
            reward=reward,
            trains=trainable(sample),
            turns=sample.metadata.get(TURNS) or [(0, sample.response_length - 1, 0.0)],  # one that the trainer played
        )
        for sample, reward in zip(samples, raw, strict=True)
    ]
    gained = advantages_of(members, center=center, scale=scale, turns=takes_turns)
    return raw, [TurnAdvantages(own) if takes_turns else own[0][1] for own in gained]


def centres(args: Any) -> bool:
    """Tell whether orl subtracts the mean of a group."""
    return getattr(args, "rewards_normalization", False) and estimator_named(args.advantage_estimator).center


def is_final(sample: Any) -> bool:
    """Tell whether the reward of `sample` is what it learns from: no comparison and no advantages of turns follow."""
    return not {OFFERED, SCORED, TURNS} & sample.metadata.keys()


def reason_to_drop(args: Any, samples: Sequence[Any]) -> str | None:
    """Return why a group teaches nothing; None if two of its rollouts train and their rewards differ.

    `samples` is one group: a sample for each rollout, or a list of them. A group of one is kept if it trains. Groups
    that the environment will compare, or whose turns have advantages, are kept whatever their rewards are now.
    """
    members = flat(samples)
    rewards = {rollout_of(sample): reward_of(args, sample) for sample in members if trainable(sample)}
    compared = not all(map(is_final, members))
    if len(rewards) < min(2, len(samples)):
        return "too_few_train"
    if len(samples) > 1 and not compared and max(rewards.values()) - min(rewards.values()) <= SMALLEST_DIFFERENCE:
        return f"equal_rewards_{round(next(iter(rewards.values())), 1)}"
    return None


def compare(args: Any, samples: Sequence[Any], rewards: Sequence[float]) -> list[float]:
    """Return the rewards of N samples, blended with the environment's scores where whole groups were offered.

    Conversations leave the metadata; scores stay in it. Total: a sample that cannot be scored keeps its reward.
    """
    if not any(OFFERED in sample.metadata for sample in samples):
        return list(rewards)
    config = config_of(args)
    groups: dict[Any, list[Any]] = {}
    for sample in samples:
        if OFFERED in sample.metadata:
            groups.setdefault(sample.group_index, []).append(sample)
    try:
        with boundary(OrlError, "scoring groups"):
            per_group = on_thread(lambda: asyncio.run(_scores(config, list(groups.values())))).result()
    except OrlError as fault:
        logger.warning("%s; all rollouts keep their own rewards", fault)
        per_group = [None] * len(groups)
    logger.info("%s", metrics_of_groups(per_group))
    scores: dict[Any, float | None] = {}
    for members, group in zip(groups.values(), per_group, strict=True):
        for member, sample in enumerate(members):
            store_conversation(sample, None)
            sample.metadata[SCORED] = scores[rollout_of(sample)] = group[member] if group else None
    return group_rewards(rewards, [scores.get(rollout_of(sample)) for sample in samples], config.group_reward)


async def _scores(config: RunConfig, groups: Sequence[Sequence[Any]]) -> list[tuple[float, ...] | None]:
    questions = [
        Group(
            task=task_of(members[0]),
            candidates=tuple(msgspec.convert(member.metadata[OFFERED], tuple[Message, ...]) for member in members),
        )
        for members in groups
    ]
    async with OpenRewardClient(config) as client:
        patience = config.rollout.patience
        return await score_groups(questions, client, seconds=config.group_reward.timeout, patience=patience)
