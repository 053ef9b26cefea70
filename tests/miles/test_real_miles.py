"""What miles alone shows inside its own rollout code: `PYTHONPATH=<checkout of miles> just test-miles`.

Its fully asynchronous rollout (case 10), its parser with our paths, its tracking (case 14), and replayed choices. The
contract suite plays the cases that slime has too.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import RunEnded, generate
from orl_rollout.run_folder.metrics_log import read
from orl_testing import Fault, FaultKind

from tests.cluster.contract.inside import step
from tests.miles.host import arguments, flat, of_miles
from tests.miles.hosting import SECONDS, hosting
from tests.slime import episode
from tests.slime.playing import Hosted

pytestmark = pytest.mark.miles
ASYNC: dict[str, Any] = {"fully_async": True}
METRICS = "rollout/fully_async/"
PARTIAL: dict[str, Any] = {
    "partial_rollout": True,
    "rollout_batch_size": 1,
    "over_sampling_batch_size": 2,
    "n_samples_per_prompt": 1,
}
REFUSAL = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)


@pytest.mark.parametrize("handler", ["drop", "retry"])
async def test_10_a_group_with_a_failure_is_dropped_or_played_anew(handler: str, hosted: Hosted):
    with hosted(hosting, [REFUSAL], **ASYNC, async_unused_samples_handler=handler) as (host, _):
        groups = await played(host, 0)
        host.log(groups)
        data = host.train_data(groups)
        assert host.metrics is not None
        assert host.metrics[f"{METRICS}aborted_groups_filtered"] == 1
        groups += await played(host, 1)
    assert {sample.status.value for sample in flat(groups)} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])
    seen = {sample.index for sample in flat(groups)}
    assert ({0, 1} <= seen) if handler == "retry" else len({0, 1, 2, 3} - seen) == 2


async def test_10_what_older_weights_played_is_too_stale(hosted: Hosted):
    """The engine plays with weights 1; the trainer has made version 3 of them, and bears one version between."""
    with hosted(hosting, **ASYNC, max_weight_staleness=1) as (host, server):
        server.weight_version = "1"
        first = await played(host, 0, version=2)
        assert host.metrics is not None
        assert host.metrics[f"{METRICS}max_staleness"] == 1
        asyncio.get_running_loop().call_later(1.0, setattr, server, "weight_version", "3")
        second = await played(host, 1, version=3)
        assert host.metrics[f"{METRICS}stale_groups_filtered"] >= 1
    assert {version for sample in flat(first) for version in sample.weight_versions} == {"1"}
    assert "1" not in {min(sample.weight_versions) for sample in flat(second)}


async def test_10_a_dead_environment_ends_the_job(hosted: Hosted):
    dead = episode.settings("http://127.0.0.1:9")
    with hosted(hosting, config=dead, **ASYNC, rollout_batch_size=16) as (host, server):
        with pytest.raises(RunEnded, match="of the last 64 rollouts ended in ERROR"):
            host.log(await played(host, 0))
        assert not server.requests


async def test_10_the_workers_loop_evaluates_too(hosted: Hosted, tmp_path: Path):
    held_out = episode.make_tasks(tmp_path / "held_out.jsonl", 2)
    flags: dict[str, Any] = ASYNC | {"eval_prompt_data": ["held_out", held_out], "n_samples_per_eval_prompt": 2}
    with hosted(hosting, **flags) as (host, _):
        await played(host, 0)
        evaluated = await asyncio.wait_for(asyncio.to_thread(host.evaluate), SECONDS)
    assert len(evaluated["held_out"]["rewards"]) == 4


async def played(host: Any, rollout_id: int, version: int | None = None) -> list[list[Any]]:
    return await asyncio.wait_for(asyncio.to_thread(host.rollout, rollout_id, version), SECONDS)


def parsed(checkpoint: Path, folder: Path, **flags: Any) -> Any:
    tasks = episode.make_tasks(folder / "tasks.jsonl", 1)
    return arguments(checkpoint, tasks, "http://127.0.0.1:9", {"orl_config": {"a": 1}}, **flags)


def test_the_command_line_of_a_launch_is_miles_own(checkpoint: Path, tmp_path: Path):
    args = parsed(checkpoint, tmp_path)
    assert args.orl_config == {"a": 1}
    assert args.global_batch_size == 4
    assert args.rollout_function_path == args.eval_function_path
    assert args.rollout_function_path.endswith("inference_rollout_common.InferenceRolloutFn")


def test_11_an_option_that_nobody_has_is_refused(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        parsed(checkpoint, tmp_path, orl_no_such_option=1)
    assert end.value.code == 2
    assert "unrecognized arguments: --orl-no-such-option 1" in capsys.readouterr().err


def test_our_own_options_are_on_miles_command_line(checkpoint: Path, tmp_path: Path):
    parser = ArgumentParser()
    generate.add_arguments(parser)  # type: ignore[attr-defined]
    ours = vars(parser.parse_args([]))
    assert ours
    assert ours.keys() <= vars(parsed(checkpoint, tmp_path)).keys()
    assert parsed(checkpoint, tmp_path, orl_config="a.yaml").orl_config == {"a": 1}  # `orl train`'s file wins


class Tracker:
    """One more backend of miles' tracking, which keeps what it would send."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log(self, metrics: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.rows.append(dict(metrics))


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Tracker:
    tracker = Tracker()
    manager = of_miles("miles.utils.tracking_utils.tracking._manager")
    monkeypatch.setattr(manager, "_backends", [tracker])
    return tracker


async def test_14_the_logs_are_in_miles_tracking_and_its_cache_is_ours(
    hosted: Hosted, tmp_path: Path, tracker: Tracker
):
    with hosted(hosting) as (host, _):
        groups, _ = await step(host)
    ours, theirs = tracker.rows
    hits = ours["rollout/playground/GuessNumber/cache_hits"]
    assert (ours["rollout/step"], theirs["rollout/step"]) == (0, 0)
    assert theirs["rollout/prefix_cache_hit_rate"] == pytest.approx(hits)
    assert 0.0 < hits < 1.0
    (row,) = read(tmp_path / "run" / "metrics.jsonl")
    assert row.metrics["playground/GuessNumber/cache_hits"] == pytest.approx(hits)
    assert theirs["perf/non_generation_time/max"] == max(sample.non_generation_time for sample in flat(groups)) > 0


async def test_2c_the_class_api_masks_nothing_of_before(hosted: Hosted):
    with (
        pytest.raises(ValueError, match="MILES_USE_LEGACY_ROLLOUT_V1"),
        hosted(hosting, **PARTIAL, mask_offpolicy_in_partial_rollout=True),
    ):
        pass


async def test_7_a_group_with_a_failure_is_replaced_where_miles_is_asked_to(hosted: Hosted):
    """`check_no_aborted` looks for ABORTED alone, so under it that is what a failure is."""
    checks = "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted"
    flags: dict[str, Any] = {"dynamic_sampling_filter_path": checks}
    with hosted(hosting, [REFUSAL], **flags) as (host, _):
        groups, data = await step(host)
    assert host.metrics == {"rollout/dynamic_filter/drop_group_has_aborted": 1}
    assert len(groups) == 2
    assert all(any(mask) for mask in data["loss_masks"])


async def test_routing_choices_reach_trainer_for_all_rows(hosted: Hosted):
    with hosted(hosting, [REFUSAL], use_rollout_routing_replay=True) as (host, _):
        host.args.num_layers = host.args.moe_router_topk = 1  # as the stand-in has them
        groups, data = await step(host)
    assert "failed" in {sample.status.value for sample in flat(groups)}
    for tokens, experts, mask in zip(data["tokens"], data["rollout_routed_experts"], data["loss_masks"], strict=True):
        assert experts.shape == (len(tokens) - 1, 1, 1)
        expected = [token % 8 if any(mask) else -1 for token in tokens[:-1]]
        assert experts.flatten().tolist() == expected
