"""slime's reward hooks: the reward was computed with the trajectory; here it is returned, and made into advantages.

`--custom-rm-path orl_slime.reward.reward` and `--custom-reward-post-process-path orl_slime.reward.post_process`. The
second exists because slime's own normalisation takes an uneven batch for one group and lets failures into the baseline.
"""

from __future__ import annotations

from typing import Any

from orl_core.reward import group_advantages

from orl_slime.compare import compare, rollout_of

_NORMALISED = frozenset({"grpo", "gspo", "cispo"})
_CENTRED = frozenset({"reinforce_plus_plus_baseline"})


async def reward(args: Any, sample: Any, **_: Any) -> Any:
    """The reward that `generate` set: a float, or a list of floats for a list of samples."""
    if isinstance(sample, list):
        return [await reward(args, member) for member in sample]
    return 0.0 if sample.reward is None else float(sample.reward)


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards as the estimator wants them, for N samples in slime's order.

    Whole groups are here for the first time, so this is where the environment compares them (`group_reward`).
    Samples that do not train are left out of their group's baseline and get 0. A rollout that was split into several
    samples (equal `rollout_id`) counts once.
    """
    given = [0.0 if sample.reward is None else float(sample.reward) for sample in samples]
    raw = compare(args, samples, given)
    normalised = args.rewards_normalization and args.advantage_estimator in _NORMALISED
    centred = args.rewards_normalization and args.advantage_estimator in _CENTRED
    if not (normalised or centred):
        return raw, list(raw)
    advantages = group_advantages(
        raw,
        [sample.group_index for sample in samples],
        [rollout_of(sample) for sample in samples],
        [not sample.remove_sample and any(sample.loss_mask) for sample in samples],
        center=True,
        scale=bool(normalised and args.grpo_std_normalization),
    )
    return raw, advantages
