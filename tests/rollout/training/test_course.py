"""The course of a run with a policy that counts: the order of a step, measurements, checkpoints, every ending."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from orl_core.config import TrainerConfig, decode_config
from orl_core.errors import OrlError, RunAborted
from orl_core.estimators import ESTIMATORS
from orl_core.task import Task
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.contract import CHECKPOINT, Run
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.course import Course, Record, Schedule
from orl_rollout.training.rows import Row

from tests.kit.nvml import Gpu, driver
from tests.kit.paid_turns import JOB, outcome

TASKS = tuple(Task(env_name="A/B", deployment_name="A/B", index=index) for index in range(5))
ENVIRONMENT = JOB.task.env_name


class Counted:
    """Policy, engine and player of a run. `said` has what was asked of it, in order; `faults` what it raises."""

    def __init__(self, faults: Mapping[str, BaseException] = {}) -> None:
        self.said: list[str] = []
        self.rows: list[Sequence[Row]] = []
        self._faults = faults

    def _say(self, what: str) -> None:
        if not self.said or self.said[-1] != what:
            self.said.append(what)
        if what in self._faults:
            raise self._faults[what]

    def engine(self) -> Engine:
        return cast("Engine", self)

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        self.rows.append(rows)
        self._say(f"update {step}")
        return {"loss": 0.5, "logprob_difference": 0.001}

    async def publish(self, version: str) -> Mapping[str, float]:
        self._say(f"publish {version}")
        return {"weights_changed": float(version)}

    async def save(self, folder: Path, step: int) -> None:
        assert folder.name == CHECKPOINT
        self._say(f"save {step}")

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        assert engine is self
        self._say(request.rollout_id.rsplit("/", 1)[0])
        return outcome([([1], [2, 3], float(request.rollout_id[-1] == "0"))])


def schedule_of(trainer: TrainerConfig, **more: Any) -> Schedule:
    return Schedule(trainer=trainer, estimator=ESTIMATORS["grpo"], tasks=TASKS, **more)


def course(
    folder: Path, policy: Counted, *, done: int = 0, held_out: int = 2, ahead: bool = False, **trainer: Any
) -> Course:
    sizes = {"n_samples": 2, "rollout_batch_size": 2, "num_rollout": 3, **trainer}
    tree = {"environments": {ENVIRONMENT: {}}, "eval": {"interval": 2}, "trainer": sizes}
    config = decode_config(tree, "test")
    run = Run(config=config, folder=folder, task_data=folder / "tasks.jsonl")
    schedule = schedule_of(config.trainer, held_out=TASKS[:held_out], done=done, ahead=ahead)
    record = Record(run, ("orl-core", "no-such-package"), {"resumed_step": done}, lambda *_: None)
    return Course(run, schedule, policy, policy, record)


def summary(folder: Path) -> dict[str, Any]:
    return msgspec.json.decode((folder / "summary.json").read_bytes())


async def test_step_plays_updates_publishes_and_measures(tmp_path: Path) -> None:
    policy = Counted()
    with driver(Gpu("GPU-a", 50, 3.0)):
        await course(tmp_path, policy, save_interval=2).run()
    assert policy.said == [
        "publish 0", "eval/0",
        "train/1", "update 1", "publish 1",
        "train/2", "update 2", "publish 2", "save 2", "eval/2",
        "train/3", "update 3", "publish 3", "eval/3", "save 3",
    ]  # fmt: skip
    rows = metrics_log.read(tmp_path / "metrics.jsonl")
    assert [(row.kind, row.step) for row in rows] == [
        ("eval", 0), ("train", 1), ("train", 2), ("eval", 2), ("train", 3), ("eval", 3),
    ]  # fmt: skip
    assert all(row.metrics["gpu0/memory_gib"] == 3.0 for row in rows)
    assert (rows[1].metrics["loss"], rows[1].metrics["weights_changed"]) == (0.5, 1.0)
    assert {"rollout_seconds", "train_seconds", "weight_sync_seconds", "step_seconds"} < rows[1].metrics.keys()
    assert [len(batch) for batch in policy.rows] == [4, 4, 4]
    whole = summary(tmp_path)
    assert (whole["steps"], whole["resumed_step"], "error" in whole) == (3, 0, False)
    assert "orl-core" in whole["versions"]
    assert "no-such-package" not in whole["versions"]


class Ahead(Counted):
    """Trains until a rollout of the next step has begun, and plays until the update has ended."""

    last = 3

    def __init__(self, faults: Mapping[str, BaseException] = {}) -> None:
        super().__init__(faults)
        self.begun, self.trained, self.cancelled = asyncio.Event(), asyncio.Event(), 0
        self.trained.set()

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        self.begun.clear()
        self.trained.clear()
        if step < self.last:
            await self.begun.wait()
        self.trained.set()
        return await super().update(rows, step)

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        self.begun.set()
        try:
            await self.trained.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().play(request, engine)


async def test_rollouts_ahead_play_during_an_update(tmp_path: Path) -> None:
    policy = Ahead()
    await asyncio.wait_for(course(tmp_path, policy, ahead=True, save_interval=2).run(), 10)
    assert policy.said == [
        "publish 0", "eval/0", "train/1",
        "update 1", "train/2", "publish 1",
        "update 2", "train/3", "publish 2", "save 2", "eval/2",
        "update 3", "publish 3", "eval/3", "save 3",
    ]  # fmt: skip
    rows = [row for row in metrics_log.read(tmp_path / "metrics.jsonl") if row.kind == "train"]
    assert [row.metrics["staleness"] for row in rows] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("fault", "steps", "cancelled"),
    [({"update 1": OrlError("no memory")}, 0, 4), ({"train/2": RunAborted("too many")}, 1, 0)],
)
async def test_fault_with_rollouts_ahead_ends_them(
    tmp_path: Path, fault: dict[str, BaseException], steps: int, cancelled: int
) -> None:
    policy = Ahead(fault)
    with pytest.raises(OrlError):
        await asyncio.wait_for(course(tmp_path, policy, ahead=True).run(), 10)
    assert summary(tmp_path)["steps"] == steps
    assert policy.cancelled == cancelled


async def test_drift_is_judged_of_fresh_rollouts_only(tmp_path: Path) -> None:
    policy = Ahead()

    async def update(rows: Sequence[Row], step: int) -> Mapping[str, float]:
        return {**await Ahead.update(policy, rows, step), "logprob_difference": 0.9}

    policy.update, policy.last = update, 12
    await asyncio.wait_for(course(tmp_path, policy, ahead=True, num_rollout=12).run(), 10)
    assert summary(tmp_path)["steps"] == 12


async def test_run_goes_on_after_the_steps_that_are_done(tmp_path: Path) -> None:
    policy, whole = Counted(), Counted()
    await course(tmp_path, policy, done=2, held_out=0).run()
    assert policy.said == ["publish 2", "train/3", "update 3", "publish 3", "save 3"]
    (tmp_path / "whole").mkdir()
    await course(tmp_path / "whole", whole, held_out=0).run()
    assert policy.rows[0] == whole.rows[2]


@pytest.mark.parametrize(
    ("fault", "ending", "saved"),
    [
        ({"train/2": RunAborted("too many")}, {"error": "too many"}, "save 1"),
        ({"update 2": OrlError("no memory")}, {"error": "no memory"}, "save 1"),
        ({"publish 2": asyncio.CancelledError()}, {"interrupted": True}, "save 2"),
        ({"save 3": OrlError("disk full")}, {"error": "disk full"}, "save 3"),
        ({"update 2": OrlError("no memory"), "save 1": OrlError("disk full")}, {"error": "no memory"}, "save 1"),
        (
            {"publish 2": asyncio.CancelledError(), "save 2": OrlError("disk full")},
            {"error": "disk full", "interrupted": True},
            "save 2",
        ),
        ({"update 1": ZeroDivisionError()}, {"error": "it broke off; the traceback says where"}, ""),
    ],
)
async def test_every_ending_leaves_summary_and_checkpoint(
    tmp_path: Path, fault: dict[str, BaseException], ending: dict[str, Any], saved: str
) -> None:
    policy = Counted(fault)
    with pytest.raises(type(next(iter(fault.values())))):
        await course(tmp_path, policy).run()
    found = summary(tmp_path)
    assert {name: found[name] for name in ("error", "interrupted") if name in found} == ending
    assert [one for one in policy.said if one.startswith("save")] == [saved] * bool(saved)


async def test_drift_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Counted()

    async def update(rows: Sequence[Row], step: int) -> Mapping[str, float]:
        return {"logprob_difference": 0.9}

    monkeypatch.setattr(policy, "update", update)
    with pytest.raises(OrlError, match="logprobs"):
        await course(tmp_path, policy, num_rollout=40, held_out=0).run()
    assert summary(tmp_path)["steps"] == 8


def test_tasks_of_a_step_come_once_an_epoch() -> None:
    config = decode_config({"environments": {ENVIRONMENT: {}}, "trainer": {"rollout_batch_size": 1}}, "test")
    schedule = schedule_of(config.trainer)
    keys = [schedule.tasks_of(step)[0].key for step in range(1, 11)]
    assert {*keys[:5]} == {*keys[5:]} == {task.key for task in TASKS}
    assert keys[:5] != keys[5:]


class Stopped(Ahead):
    """Plays the next step until it is cancelled, which takes `closing` turns of the loop."""

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        if request.step < 2:
            return await super().play(request, engine)
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.said.append("closing")
            for _ in range(9):
                await asyncio.sleep(0)
        raise AssertionError


@pytest.mark.parametrize("signals", [1, 2])
async def test_step_counts_once_its_update_is_applied(tmp_path: Path, signals: int) -> None:
    """A signal comes while rollouts ahead still play, and another one while they close."""
    policy = Stopped()
    running = asyncio.create_task(course(tmp_path, policy, ahead=True, held_out=0).run())
    async with asyncio.timeout(10):
        for event in ("update 1", "closing")[:signals]:
            while event not in policy.said:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    found = summary(tmp_path)
    assert (found["steps"], found["interrupted"]) == (1, True)
    assert policy.said[-1] == "save 1"
