"""The history gives each evaluation its step; a run that is over does not touch those that come after."""

from __future__ import annotations

import copy
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from orl_cluster.hooks.group_scores import OFFERED
from orl_cluster.hooks.samples import fill
from orl_cluster.hooks.worker import aclose
from orl_core.errors import ConfigError, RunAborted
from orl_rollout.run_folder.metrics_log import read
from orl_slime.generate import generate
from orl_slime.hooks import log_eval, log_rollout

from tests.kit.trajectories import ended
from tests.slime import episode
from tests.slime.miniature import Sample
from tests.slime.test_generate import SAMPLING, arguments_of

NOWHERE = "http://127.0.0.1:9"
TASK = {"env_name": "playground/GuessNumber", "deployment_name": "playground/GuessNumber", "index": 0}


def played() -> list[Any]:
    sample = Sample()
    fill(sample, ended("a"), text_of=str)
    return [sample]


@pytest.mark.parametrize(
    ("batches", "rollout_id", "step"),
    [
        ([], 0, 0),  # before all training
        ([0], 0, 1),
        ([0, 1], 0, 1),  # the next batch was played meanwhile
        ([0, 1], 1, 2),
        ([], 7, 7),  # of a run that was resumed, in a folder of its own
        ([5, 6], 7, 7),  # and in the folder of the run before it
    ],
)
def test_an_evaluation_is_that_of_the_steps_before_it(batches: list[int], rollout_id: int, step: int, tmp_path: Path):
    args = Namespace(orl_folder=str(tmp_path))
    for batch in batches:
        log_rollout(batch, args, played(), None, 1.0)
    log_eval(rollout_id, args, {"held_out": {"samples": played()}})
    assert [row.step for row in read(tmp_path / "metrics.jsonl") if row.kind == "eval"] == [step]


GRPO = {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True}


@pytest.mark.parametrize(
    ("rewards", "options", "metadata", "equal"),
    [
        ((0.0, 0.0), GRPO, {}, 1.0),
        ((0.0, 1.0), GRPO, {}, 0.0),
        ((0.0, 0.0), {"advantage_estimator": "ppo", "rewards_normalization": True}, {}, None),  # no baseline of a group
        ((0.0, 0.0), {**GRPO, "rewards_normalization": False}, {}, None),
        ((0.0, 0.0), GRPO, {OFFERED: []}, None),  # the environment compares them later
    ],
)
def test_batch_has_its_groups_if_rewards_are_final(
    rewards: tuple[float, ...], options: dict[str, Any], metadata: dict[str, Any], equal: float | None, tmp_path: Path
):
    batch = [Sample(index=index) for index, _ in enumerate(rewards)]
    for sample, reward in zip(batch, rewards, strict=True):
        fill(sample, ended("a", reward=reward), text_of=str)
        sample.metadata |= metadata
    log_rollout(0, Namespace(orl_folder=str(tmp_path), **options), batch, None, 1.0)
    (row,) = read(tmp_path / "metrics.jsonl")
    assert row.overall("equal_groups") == equal
    assert row.overall("groups") == (None if equal is None else 1.0)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules with the functions of slime's logging, by their names, and under `rows` what they log."""
    rows: list[dict[str, Any]] = []
    tracking, metric_utils = ModuleType("logging_utils"), ModuleType("metric_utils")
    tracking.__dict__["log"] = lambda _, metrics, step_key: rows.append({"key": step_key, **metrics})
    metric_utils.__dict__["compute_rollout_step"] = lambda _, rollout_id: rollout_id + 100
    for name in [name for name in sys.modules if name.startswith("slime.")]:  # of real slime, in its own suite
        monkeypatch.delitem(sys.modules, name)
    return {"logging_utils": tracking, "metric_utils": metric_utils, "rows": rows}


@pytest.mark.parametrize("folder", ["observability", "utils"])  # of slime's newest version, and of 0.3.1
def test_metrics_are_in_the_tracking_of_each_version(  # shows G13
    folder: str, logged: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("logging_utils", "metric_utils"):
        monkeypatch.setitem(sys.modules, f"slime.{folder}.{name}", logged[name])
    log_rollout(0, Namespace(orl_folder=str(tmp_path), use_wandb=True), played(), None, 1.0)
    (row,) = logged["rows"]
    assert (row["key"], row["rollout/step"]) == ("rollout/step", 100)
    assert any(name.endswith("/reward") for name in row)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"partial_rollout": True}, "--partial-rollout"),
        ({"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"}, "fully_async"),
    ],
)
async def test_a_run_that_is_over_fails_lists_and_is_told_by_every_log(
    changes: dict[str, Any], option: str, checkpoint: Path, tmp_path: Path
):
    config = episode.settings(NOWHERE) | {"thinking": "strip"}
    args = arguments_of(NOWHERE, checkpoint, config, **changes)
    log_rollout(0, args, played(), None, 1.0)
    own = copy.copy(args)  # as trainers make for engines of their own
    own.sglang_router_port = 8
    try:
        with pytest.raises(ConfigError, match=option):
            await generate(own, Sample(metadata=dict(TASK)), SAMPLING)
        (sample,) = await generate(args, Sample(metadata=dict(TASK)), SAMPLING)
        with pytest.raises(RunAborted, match=option):
            await generate(args, Sample(metadata=dict(TASK)), SAMPLING, evaluation=True)
    finally:
        await aclose()
    assert (sample.status.value, sample.remove_sample) == ("failed", True)
    with pytest.raises(RunAborted, match=option):
        log_rollout(0, args, [sample], None, 1.0)
    with pytest.raises(RunAborted, match=option):
        log_eval(0, args, {"held_out": {"samples": []}})


async def test_a_row_that_the_trainer_plays_recovers_from_a_failure(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    async def by_slime(args: Any, sample: Any, sampling: Any) -> None:
        assert sample.status in {Sample.Status.PENDING, Sample.Status.ABORTED}
        if faults:
            raise faults.pop()
        assert (sample.tokens, sample.response_length, sample.rollout_log_probs) == ([], 0, None)
        sample.tokens, sample.response_length, sample.status = [1, 2], 1, Sample.Status.COMPLETED

    faults = [OSError("the engine is gone")]
    host: Any = ModuleType("slime.rollout.sglang_rollout")
    host.generate = by_slime
    monkeypatch.setitem(sys.modules, host.__name__, host)
    args = arguments_of(NOWHERE, checkpoint, episode.settings(NOWHERE))
    sample = Sample(prompt="1 + 1?", rollout_id=3)
    try:
        await generate(args, sample, SAMPLING)
        assert (sample.status.value, sample.remove_sample, sample.reward) == ("failed", True, 0.0)
        await generate(args, sample, SAMPLING)
    finally:
        await aclose()
    assert (sample.status.value, sample.remove_sample, sample.reward) == ("completed", False, None)
    assert (sample.tokens, sample.rollout_id) == ([1, 2], 3)
