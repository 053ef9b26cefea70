"""Rewards of samples: one number each, the advantages of a batch of whole groups, and groups that teach nothing.

A trainer's own normalisation may take an uneven batch for one group, or let failures into the baseline. Its own filter
may not look into rollouts that were split into several samples, and takes a failure's reward for a reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from orl_core.errors import ConfigError
from orl_core.estimators import estimator_named
from orl_rollout.results.metrics import SMALLEST_DIFFERENCE
from orl_rollout.training.rows import Member, advantages_of

from orl_cluster.hooks.group_scores import OFFERED, SCORED, compare, flat, rollout_of
from orl_cluster.hooks.turns import TURNS, TurnAdvantages


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
    return raw, [TurnAdvantages.of(own) if takes_turns else own[0][1] for own in gained]


def centres(args: Any) -> bool:
    """Tell whether orl subtracts the mean of a group.

    Raises:
        ConfigError: orl does not know the estimator.
    """
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
