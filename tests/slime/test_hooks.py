"""Our hooks on the miniature: the dynamic filter, comparison of groups, and what the logs tell."""

from __future__ import annotations

import asyncio
import copy
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from orl_cluster.hooks.samples import OFFERED, SCORED, fill, split, store_conversation
from orl_cluster.hooks.worker import aclose, run_of
from orl_core.errors import ConfigError, RunAborted
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.metrics_log import read
from orl_slime.generate import generate
from orl_slime.hooks import has_signal, log_eval, log_rollout, post_process
from orl_testing.environments import Served, serve

from tests.kit.trajectories import ended
from tests.slime import episode
from tests.slime.miniature import Sample, arguments
from tests.slime.test_generate import SAMPLING, arguments_of


def sample(index: int, reward: float, *, trains: bool = True, **changes: object) -> Sample:
    status = Sample.Status.COMPLETED if trains else Sample.Status.FAILED
    return Sample(index=index, reward=reward, loss_mask=[int(trains)], response_length=1, status=status, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ([sample(0, 1.0), sample(1, 0.0)], True),
        ([sample(0, 1.0), sample(1, 1.0)], False),
        ([sample(0, 1.0), sample(1, 1.0 + 1e-9)], False),
        ([sample(0, 1.0), sample(1, 0.0, trains=False)], False),
        ([sample(0, 1.0, trains=False), sample(1, 0.0, trains=False)], False),
        ([sample(0, 1.0)], True),
        ([sample(0, 0.0, trains=False)], False),
        ([[sample(0, 1.0), sample(0, 1.0)], [sample(1, 0.0)]], True),
        ([[sample(0, 1.0), sample(0, 1.0)], [sample(1, 0.0, trains=False)]], False),
        ([[sample(0, 1.0, rollout_id=0), sample(7, 1.0, rollout_id=0)], [sample(1, 1.0)]], False),
        ([sample(0, 1.0, metadata={OFFERED: []}), sample(1, 1.0, metadata={OFFERED: []})], True),
        ([sample(0, 1.0, remove_sample=True), sample(1, 0.0)], False),
    ],
)
def test_only_groups_with_a_signal_are_kept(group: list[Sample], kept: bool):
    answer = has_signal(arguments(), group)
    assert getattr(answer, "keep", answer) is kept  # slime's own answer, where a test has loaded slime before


def test_filter_that_drops_every_group_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The trainer samples on and makes no step: no row of metrics tells that there is no signal."""
    args = arguments(rollout_batch_size=2, orl_folder=str(tmp_path))
    for _ in range(5):
        has_signal(args, [sample(0, 0.0), sample(1, 0.0)])
    has_signal(args, [sample(0, 1.0), sample(1, 0.0)])
    for _ in range(5):
        has_signal(args, [sample(0, 0.0), sample(1, 0.0)])
    assert "dropped" not in caplog.text
    for _ in range(5):
        has_signal(args, [sample(0, 0.0), sample(1, 0.0)])
    assert caplog.text.count("dropped 6 groups in a row, the latest for equal_rewards_0.0") == 1


@pytest.fixture(scope="module")
def gallery() -> Iterator[Served]:
    with serve() as served:
        yield served


def args(url: str, mode: str = "only", **changes: Any) -> Namespace:
    environments = {"gallery/Compared": {"base_url": url}}
    comparison = {"group_reward": {"mode": mode, "timeout": 5}, "rollout": {"patience": 1.0}}
    return arguments(orl_config={"environments": environments, **comparison}, **changes)


def played(outcome: Outcome, index: int, group: int) -> list[Sample]:
    """Return what `generate` makes of an outcome whose reasoning is stripped, where groups are compared."""
    task = msgspec.to_builtins(outcome.trajectory.job.task)
    sample = Sample(index=index, group_index=group, metadata=task | {"start_rollout_id": 3})
    store_conversation(sample, outcome.trajectory if outcome.trajectory.trainable else None)
    return split(sample, outcome, text_of=str)


def test_whole_groups_are_compared_and_siblings_share_the_score(gallery: Served):
    outcomes = [ended("a"), ended("bbb"), ended("asleep", number=2), ended("at all", number=2)]
    samples = [sample for index, outcome in enumerate(outcomes) for sample in played(outcome, index, index // 2)]
    sibling = Sample(index=1, rollout_id=1, group_index=0, reward=1.0, loss_mask=[1])
    samples.insert(2, sibling)
    raw, advantages = post_process(args(gallery.url), samples)
    assert raw == [1.0, 3.0, 3.0, 1.0, 1.0]
    assert advantages == pytest.approx([-0.7071, 0.7071, 0.7071, 0.0, 0.0], abs=1e-3)
    assert not any(OFFERED in sample.metadata for sample in samples)
    assert [sample.metadata.get(SCORED) for sample in samples] == [1.0, 3.0, None, None, None]
    raw, _ = post_process(args(gallery.url), samples)
    assert raw == [1.0] * 5, "a batch is compared once"


async def test_it_works_beside_a_running_loop(gallery: Served):
    samples = [*played(ended("a"), 0, 0), *played(ended("bbb"), 1, 0)]
    raw, _ = post_process(args(gallery.url, "blend"), samples)
    assert raw == [2.0, 4.0]
    assert asyncio.get_running_loop().is_running()


@pytest.mark.slow
def test_an_environment_out_of_reach_leaves_the_rewards():
    samples = played(ended("a"), 0, 0)
    raw, _ = post_process(args("http://127.0.0.1:9", rewards_normalization=False), samples)
    assert raw == [1.0]


NOWHERE = "http://127.0.0.1:9"
TASK = {"env_name": "playground/GuessNumber", "deployment_name": "playground/GuessNumber", "index": 0}


def one_sample() -> list[Any]:
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
        log_rollout(batch, args, one_sample(), None, 1.0)
    log_eval(rollout_id, args, {"held_out": {"samples": one_sample()}})
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
def test_metrics_are_in_the_tracking_of_each_version(
    folder: str, logged: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("logging_utils", "metric_utils"):
        monkeypatch.setitem(sys.modules, f"slime.{folder}.{name}", logged[name])
    log_rollout(0, Namespace(orl_folder=str(tmp_path), use_wandb=True), one_sample(), None, 1.0)
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
    log_rollout(0, args, one_sample(), None, 1.0)
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


def test_evaluations_have_steps_in_a_process_that_plays_no_training(tmp_path: Path):
    """If slime plays on several nodes, its manager evaluates and logs."""
    run = run_of(Namespace(orl_folder=str(tmp_path)))
    assert run.step(0, evaluation=True) == 0
    log_rollout(6, Namespace(orl_folder=str(tmp_path)), one_sample(), None, 1.0)
    assert run.step(6, evaluation=True) == 7


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
