"""A miniature of slime, so that the adapter is tested without it: its Sample, and how its rollout code treats one."""

from __future__ import annotations

import asyncio
import enum
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from orl_cluster.hooks.worker import aclose
from orl_slime.generate import generate
from orl_slime.hooks import post_process


@dataclass
class Sample:
    """The fields of slime's Sample that an adapter touches."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    index: int = 0
    group_index: int = 0
    rollout_id: int | None = None
    session_id: str | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    reward: Any = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    non_generation_time: float = 0.0


def arguments(**changes: Any) -> Namespace:
    fields = {"rewards_normalization": True, "advantage_estimator": "grpo", "grpo_std_normalization": True}
    return Namespace(**fields | changes)


class Miniature:
    """Plays two groups of two, and makes of them what the trainer gets."""

    sample: type[Sample] = Sample
    post_process: Any = staticmethod(post_process)

    def __init__(self, args: Namespace) -> None:
        self.args = args
        rows = [msgspec.json.decode(line) for line in Path(args.prompt_data).read_bytes().splitlines()]
        self.groups = [
            [
                self.sample(
                    index=2 * group + member,
                    group_index=group,
                    session_id=f"s{2 * group + member}",
                    metadata=msgspec.json.decode(msgspec.json.encode(row[args.metadata_key])),
                )
                for member in range(2)
            ]
            for group, row in enumerate(rows[:2])
        ]

    def rollout(self, *, evaluation: bool = False) -> list[list[Any]]:
        """The groups, played side by side on a loop that ends with them."""
        return asyncio.run(self._play(evaluation))

    async def _play(self, evaluation: bool) -> list[list[Any]]:
        sampling = {"temperature": 1.0, "max_new_tokens": 200, "stop": None}
        flat = [sample for group in self.groups for sample in group]
        plays = [asyncio.ensure_future(self.generate(one, sampling, evaluation)) for one in flat]
        try:
            played = await asyncio.gather(*plays)
        finally:
            for play in plays:  # rollouts end before their clients are closed
                play.cancel()
            await asyncio.gather(*plays, return_exceptions=True)
            await aclose()
        return [played[:2], played[2:]]

    async def generate(self, sample: Any, sampling: dict[str, Any], evaluation: bool) -> Any:
        """One rollout, as the trainer calls for it."""
        return await generate(self.args, sample, sampling, evaluation)

    def train_data(self, groups: list[list[Any]]) -> dict[str, Any]:
        """Return what the trainer gets, as slime converts it."""
        flat: list[Any] = groups
        while isinstance(flat[0], list):
            flat = [sample for group in flat for sample in group]
        raw, rewards = self.post_process(self.args, flat)
        masks = [[0] * len(sample.loss_mask) if sample.remove_sample else sample.loss_mask for sample in flat]
        return {"raw_reward": raw, "rewards": rewards, "loss_masks": masks}

    def close(self) -> None:
        """Nothing is left open."""
