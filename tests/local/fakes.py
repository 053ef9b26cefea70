"""A player that asks the engine for two turns and ends each rollout as its script says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import structs
from orl_core.config import RunConfig, decode_config
from orl_core.messages import Action, ToolResult
from orl_core.task import Task, row_of
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_local.options import LocalOptions
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_rollout.run_folder.contract import Run
from orl_rollout.runtime.runtime import RolloutRequest

from tests.kit.secrets import NO_SECRETS

ENVIRONMENT = "toy/Env"
End = float | StopReason | Exception | Callable[[], float]


class Player:
    """`script` gets a rollout's key and says its reward, or how it fails; an ERROR has no turns, others have."""

    def __init__(self, config: RunConfig, script: Callable[[str], End]) -> None:
        self.opened = self.closed = self.running = self.cancelled = 0
        self.keys: list[str] = []
        self._config = config
        self._script = script

    @asynccontextmanager
    async def open(self, run: Run, model: str) -> AsyncGenerator[Player]:
        self.opened += 1
        try:
            yield self
        finally:
            assert self.running == 0
            self.closed += 1

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        key = request.rollout_id
        self.running += 1
        self.keys.append(key)
        try:
            sampling = dict(request.sampling)
            job = RolloutSpec(task=request.task, rollout_id=key, sampling=sampling, evaluation=request.evaluation)
            return await self._play(job, engine, self._script(key))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _play(self, job: RolloutSpec, engine: Engine, end: End) -> Outcome:
        if isinstance(end, Exception):
            raise end
        if end is StopReason.ERROR:
            return self._outcome(job, (), end)
        first = job.task.index or 0
        await asyncio.sleep(0.001 * (hash(job.rollout_id) % 5))
        sampling = {**job.sampling, "max_new_tokens": 3, "stop_token_ids": []}
        shown = (10 + first, 11)
        opening = await engine.generate(shown, sampling, key=job.rollout_id)
        more = (*shown, *opening.token_ids, 12)
        closing = await engine.generate(more, sampling, key=job.rollout_id)
        reward = end() if callable(end) else end
        paid = () if isinstance(reward, StopReason) else (ToolResult(name="act", reward=reward, finished=True),)
        turns = (
            Turn(observation=shown, generations=(opening,), action=Action(), results=(ToolResult(name="act"),)),
            Turn(observation=(12,), generations=(closing,), action=Action(), results=paid),
        )
        return self._outcome(job, turns, reward if isinstance(reward, StopReason) else StopReason.FINISHED)

    def _outcome(self, job: RolloutSpec, turns: tuple[Turn, ...], reason: StopReason) -> Outcome:
        trajectory = Trajectory(job=job, turns=turns, stop_reason=reason, error="x" if reason == "error" else "")
        return outcome_of(trajectory, self._config.environments[ENVIRONMENT], NO_SECRETS)


class Recorded(Player):
    """A player whose rollouts depend on nothing but their keys."""

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        return await super().play(request, self)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        first = 20 + crc32(f"{key}/{len(ids)}".encode()) % 500
        return Generation(token_ids=(first, first + 1, first + 2), logprobs=(-6.0,) * 3, finish_reason="length")


def tasks(count: int, split: str = "train") -> list[Task]:
    return [Task(env_name=ENVIRONMENT, deployment_name=ENVIRONMENT, split=split, index=n) for n in range(count)]


def make_run(folder: Path, checkpoint: Path | str | None, *, held_out: int = 0, count: int = 4, **trainer: Any) -> Run:
    """A run of two groups of four, over `count` tasks, in `folder`."""
    small = {"n_samples": 4, "rollout_batch_size": 2, "num_rollout": 2, "lr": 1e-3}
    own = {
        field.encode_name: trainer.pop(field.name) for field in structs.fields(LocalOptions) if field.name in trainer
    }
    tree = {
        "environments": {ENVIRONMENT: {}},
        "secrets": {"token": "sesame-123"},
        "eval": {"interval": 1},
        "trainer": {"backend": "local", "model": checkpoint and str(checkpoint), **small, **trainer, "local": own},
    }
    folder.mkdir(exist_ok=True)
    paths = folder / "tasks.jsonl", folder / "eval_tasks.jsonl"
    for path, rows in zip(paths, (tasks(count), tasks(held_out, "test")), strict=True):
        path.write_bytes(b"".join(msgspec.json.encode(row_of(task)) + b"\n" for task in rows))
    return Run(
        config=decode_config(tree, "test"),
        folder=folder,
        task_data=paths[0],
        eval_data=paths[1] if held_out else None,
        facts={"seconds_warm_start": 1.5},
    )


def described(folder: Path, config: dict[str, Any]) -> Path:
    """Write the config.json of a checkpoint, whose weights nobody reads."""
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder


REWARDS: list[End] = [1.0, 0.0, StopReason.ERROR, 0.5, 1.0, StopReason.TIMEOUT, StopReason.ERROR, StopReason.ABORTED]


def by_row(key: str) -> End:
    return REWARDS[int(key.rsplit("/", 1)[1]) % len(REWARDS)]


def rows(run: Run) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (run.folder / "metrics.jsonl").read_bytes().splitlines()]


def summary(run: Run) -> dict[str, Any]:
    return msgspec.json.decode((run.folder / "summary.json").read_bytes())
