"""One recorded batch through orl-slime, orl-miles and orl-local: all of them train on the same.

The batch is drawn by a seed. Its rollouts fail, time out, are aborted or never begin, so that the baselines are made of
uneven numbers. The cluster trainers' adapters play it through `generate` and `post_process`, orl-local in a run.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orl_miles.generate
import orl_miles.hooks
import orl_slime.generate
import orl_slime.hooks
import pytest
from msgspec import structs
from orl_cluster.hooks import worker
from orl_core.config import EnvironmentConfig
from orl_core.messages import Action, ToolResult
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_local.learner import Learner
from orl_local.run import train
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_rollout.run_folder.contract import Run
from orl_rollout.runtime import runtime
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training import rows as training

from tests.kit.secrets import NO_SECRETS
from tests.local.fakes import ENVIRONMENT, Player, make_run, tasks
from tests.miles.miniature import ClassApi
from tests.miles.miniature import Sample as MilesSample
from tests.slime.miniature import Sample as SlimeSample
from tests.slime.miniature import arguments

GROUPS, MEMBERS = 4, 6
ENDS = (*[StopReason.FINISHED] * 6, *StopReason)
SEEDS = (1, 2, 3)
Batch = list[list[Trajectory]]  # by group


class Row(NamedTuple):
    """One row of a trainer."""

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None  # None if it does not train
    advantage: float


def record(seed: int, sizes: list[int]) -> Batch:
    draw = random.Random(seed)
    return [[_trajectory(draw, group) for _ in range(size)] for group, size in enumerate(sizes)]


def _trajectory(draw: random.Random, group: int) -> Trajectory:
    end = draw.choice(ENDS)
    count = draw.choice((0, 2)) if end is StopReason.ERROR else draw.randint(1, 3)
    return Trajectory(
        job=RolloutSpec(task=tasks(GROUPS)[group], rollout_id=""),
        turns=tuple(_turn(draw) for _ in range(count)),
        stop_reason=end,
        error="gone" if end is StopReason.ERROR else "",
    )


def _turn(draw: random.Random) -> Turn:
    shown, *said = (tuple(draw.randrange(1, 500) for _ in range(draw.randint(2, 7))) for _ in range(draw.randint(2, 3)))
    generations = (
        Generation(
            token_ids=ids,
            logprobs=tuple(-draw.random() for _ in ids),
            finish_reason="stop",
            weight_version=f"{version}",
        )
        for version, ids in enumerate(said)
    )
    return Turn(
        observation=shown,
        generations=tuple(generations),
        action=Action(),
        results=(ToolResult(name="act", reward=draw.choice((None, 0.0, 0.25, 1.0))),),
    )


def play_what_is_recorded(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every rollout of this process be the recorded one that its key names."""

    async def recorded(job: RolloutSpec, **_: Any) -> Trajectory:
        group, member = map(int, job.rollout_id.split("/"))
        return structs.replace(batch[group][member], job=job)

    monkeypatch.setattr(runtime, "rollout", recorded)
    monkeypatch.setattr(worker, "_runs", {})


async def by_cluster(adapter: str, batch: Batch, checkpoint: Path) -> list[Row]:
    """The rows of slime or miles, in the batch's order."""
    sample_type, generate, post_process = {
        "slime": (SlimeSample, orl_slime.generate.generate, orl_slime.hooks.post_process),
        "miles": (MilesSample, ClassApi.generate_in, orl_miles.hooks.post_process),
    }[adapter]
    args = arguments(
        hf_checkpoint=str(checkpoint),
        n_samples_per_prompt=MEMBERS,
        sglang_router_ip="127.0.0.1",
        sglang_router_port=9,
        orl_config={"environments": {ENVIRONMENT: {"base_url": "http://127.0.0.1:9"}}},
    )
    samples: list[Any] = []
    for group, members in enumerate(batch):
        for member, trajectory in enumerate(members):
            sample = sample_type(index=100 * group + member, group_index=group, session_id=f"{group}/{member}")
            sample.metadata = msgspec.to_builtins(trajectory.job.task)
            made = await generate(args, sample, {"temperature": 1.0})
            samples += made if isinstance(made, list) else [made]
    await worker.aclose()
    raw, advantages = post_process(args, samples)
    return [
        Row(
            sample.tokens,
            [0] * len(sample.loss_mask) if sample.remove_sample else sample.loss_mask,
            sample.rollout_log_probs,
            None if sample.remove_sample or not any(sample.loss_mask) else reward,
            advantage,
        )
        for sample, reward, advantage in zip(samples, raw, advantages, strict=True)
    ]


class Played(Player):
    """A player that has played before."""

    def __init__(self, run: Run, batch: Batch) -> None:
        super().__init__(run.config, lambda _: 0.0)
        self._batch = batch

    async def play(self, request: RolloutRequest, engine: object) -> Outcome:
        group, member = request.task.index or 0, int(request.rollout_id.rsplit("/", 1)[1]) % MEMBERS
        job = RolloutSpec(task=request.task, rollout_id=f"{group}/{member}")
        return outcome_of(structs.replace(self._batch[group][member], job=job), EnvironmentConfig(), NO_SECRETS)


def by_local(batch: Batch, checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    """The rows that the local trainer trains on, by rollout."""
    found: dict[str, Row] = {}

    def update(_: Learner, rows: list[training.Row], step: int) -> dict[str, float]:
        for row in rows:
            datum, gained = row.datum, max(row.advantages, key=abs)
            tokens, mask = [*datum.prompt, *datum.response], [*datum.loss_mask]
            assert row.advantages == tuple(gained * trains for trains in mask)
            found[datum.rollout_id] = Row(tokens, mask, [*datum.logprobs], datum.reward, gained)
        return {}

    monkeypatch.setattr(Learner, "update", update)
    run = make_run(folder, checkpoint, n_samples=MEMBERS, rollout_batch_size=GROUPS, num_rollout=1)
    train(run, Played(run, batch).open)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_three_trainers_train_on_the_same(seed: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    batch = record(seed, [MEMBERS] * GROUPS)
    play_what_is_recorded(batch, monkeypatch)
    slime, miles = (asyncio.run(by_cluster(adapter, batch, checkpoint)) for adapter in ("slime", "miles"))
    local = by_local(batch, checkpoint, tmp_path / "run", monkeypatch)
    assert slime == miles
    keys = [f"{group}/{member}" for group in range(GROUPS) for member in range(MEMBERS)]
    assert {key: row for key, row in zip(keys, slime, strict=True) if row.reward is not None} == local
    assert {row.advantage for row in slime if row.reward is None} == {0.0}
    assert sum(row.advantage != 0.0 for row in slime) >= GROUPS
