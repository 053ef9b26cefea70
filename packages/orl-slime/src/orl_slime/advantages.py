"""slime's `--custom-advantage-function-path`: advantages of turns, and those of REINFORCE++ for rows that cannot train.

It runs where slime trains, and never imports slime, which has loaded itself before it calls us.
"""

from __future__ import annotations

import sys
from typing import Any

TURN_ADVANTAGES = f"{__name__}.turn_advantages"
_COLUMNS = ("kl", "loss_masks", "response_lengths", "total_lengths")


def reinforce_plus_plus(args: Any, rollout_data: dict[str, Any]) -> None:
    """Set `advantages` and `returns` of N rows: slime's own for rows with a trained token, zeros for the others.

    slime asserts a trained token in every row, which a rollout that failed has not; that would end the job.
    `kl`, `loss_masks`, `rewards`, `response_lengths` and `total_lengths` have one entry for each row. slime whitens the
    advantages afterwards, over trained tokens alone.
    """
    kl: list[Any] = rollout_data["kl"]
    kept = [row for row, mask in enumerate(rollout_data["loss_masks"]) if bool(mask.any())]
    returns = [one.new_zeros(one.shape) for one in kl]
    if kept:
        slime: Any = sys.modules["slime.utils.ppo_utils"]
        columns = {name: [rollout_data[name][row] for row in kept] for name in _COLUMNS}
        rewards = kl[0].new_tensor([rollout_data["rewards"][row] for row in kept])
        own = slime.get_reinforce_plus_plus_returns(rewards=rewards, **columns, kl_coef=args.kl_coef, gamma=args.gamma)
        for row, one in zip(kept, own, strict=True):
            returns[row] = one
    rollout_data["advantages"], rollout_data["returns"] = list(returns), returns


def turn_advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    """Write `advantages` and `returns` into `rollout_data`: a tensor for each row, in the shape of `kl`."""
    del args
    context_parallel: Any = sys.modules["slime.backends.megatron_utils.cp_utils"]
    columns = (rollout_data[name] for name in ("kl", "rewards", "total_lengths", "response_lengths"))
    advantages = [
        context_parallel.slice_log_prob_with_cp(kl.new_tensor(reward.per_token(response)), total, response)
        for kl, reward, total, response in zip(*columns, strict=True)
    ]
    rollout_data["advantages"], rollout_data["returns"] = advantages, list(advantages)
