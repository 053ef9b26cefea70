"""The playground's model with an optimizer: it plays groups through orl's loop and trains on rows in one batch.

A row says which ids the model reads, which it should have sampled at each place, and with which logprob and advantage.
The arms of a comparison differ in their rows alone.
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from msgspec import Struct
from orl_core import (
    Datum,
    EnvironmentConfig,
    Generation,
    Renderer,
    RolloutSpec,
    RunConfig,
    Task,
    TrainerConfig,
    Trajectory,
)
from orl_core.reward import group_advantages
from orl_launcher.made_models import cached_model
from orl_rollout import OpenRewardClient, load_tokenizer, prepare, read_tasks, rollout
from transformers import AutoModelForCausalLM

from examples.loop import GAME, LIMITS, TorchEngine

RATE = 4e-4


class Row(Struct, frozen=True, kw_only=True):
    """A row of N places: the loss of a place is `-advantage * exp(logprob of the target - logprob)`."""

    ids: Sequence[int]
    targets: Sequence[int]
    logprobs: Sequence[float]
    advantages: Sequence[float]


def row_of(datum: Datum, advantage: float, mask: Sequence[int]) -> Row:
    """Return the row as orl's trainers have it: each place predicts the next id, where `mask` is set."""
    ids, before = (*datum.prompt, *datum.response), len(datum.prompt) - 1
    advantages = [advantage * one for one in mask]
    return Row(
        ids=ids[:-1],
        targets=ids[1:],
        logprobs=[*[0.0] * before, *datum.logprobs],
        advantages=[*[0.0] * before, *advantages],
    )


class WholeBatches(TorchEngine):
    """Sample when every rollout that still plays waits, in the order of their keys: a seed gives the same run again."""

    def __init__(self, model: Any, alive: int) -> None:
        super().__init__(model)
        self.alive = alive
        self.asked: dict[str, tuple[list[int], Mapping[str, Any], asyncio.Future[Generation]]] = {}

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self.asked[key] = (list(ids), sampling, answer)
        self.sample_if_whole()
        return await answer

    def ended(self, _: object) -> None:
        """Take note that a rollout has ended."""
        self.alive -= 1
        self.sample_if_whole()

    def sample_if_whole(self) -> None:
        if self.asked and len(self.asked) == self.alive:
            self.waiting = [self.asked[key] for key in sorted(self.asked)]
            self.asked.clear()
            self.answer()


class Learner:
    """A model that plays and learns. `fork` copies it, its optimizer included."""

    def __init__(self, model: Any, renderer: Renderer) -> None:
        self.model, self.renderer = model, renderer
        self.optimizer = torch.optim.Adam(model.parameters(), lr=RATE)

    @classmethod
    def fresh(cls) -> Self:
        """Return one with the playground's warm-started model."""
        checkpoint = cached_model(
            RunConfig(environments={GAME: EnvironmentConfig()}, trainer=TrainerConfig(model=GAME)), Path("runs")
        )
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32", trust_remote_code=False).eval()
        return cls(model, Renderer(load_tokenizer(str(checkpoint))))

    def fork(self) -> Learner:
        other = Learner(copy.deepcopy(self.model), self.renderer)
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other

    async def play(self, tasks: Sequence[Task], client: OpenRewardClient, group: int, name: str) -> list[Trajectory]:
        """Play each task `group` times, all at once; the rollouts of a task are adjacent. No rollout is replayed."""
        jobs = [
            RolloutSpec(task=task, rollout_id=f"{name}/{number}/{member}", limits=LIMITS)
            for number, task in enumerate(tasks)
            for member in range(group)
        ]
        engine = WholeBatches(self.model, len(jobs))
        playing = [
            asyncio.create_task(rollout(job, session=client.session(job.task), renderer=self.renderer, engine=engine))
            for job in jobs
        ]
        for one in playing:
            one.add_done_callback(engine.ended)
        return await asyncio.gather(*playing)

    def update(self, rows: Sequence[Row]) -> None:
        """Train once on all rows. A place that trains weighs the same in each of them."""
        width = max(len(row.ids) for row in rows)

        def column(values: Sequence[Sequence[float]], kind: torch.dtype) -> torch.Tensor:
            return torch.tensor([[*one, *[0] * (width - len(one))] for one in values], dtype=kind)

        ids, targets = (column([getattr(row, name) for row in rows], torch.long) for name in ("ids", "targets"))
        old = column([row.logprobs for row in rows], torch.float32)
        advantages = column([row.advantages for row in rows], torch.float32)
        places = max(1, int((advantages != 0).sum()))
        logprobs = self.model(ids).logits.log_softmax(-1).gather(2, targets[:, :, None])[:, :, 0]
        (-(advantages * torch.exp(logprobs - old)).sum() / places).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


async def tasks_of(config: RunConfig, most: int) -> list[Task]:
    """Return the first `most` tasks of the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        await prepare(config, f"{folder}/tasks.jsonl", max_tasks=most)
        return list(read_tasks(f"{folder}/tasks.jsonl", config))


def advantages_of(rewards: Sequence[float], trains: Sequence[bool], group: int) -> list[float]:
    """Return GRPO's advantages of adjacent groups, by orl's function."""
    count = len(rewards)
    groups = [number // group for number in range(count)]
    return group_advantages(rewards, groups, list(range(count)), trains, center=True, scale=True)
