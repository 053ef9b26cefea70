"""Our adapter inside slime's own rollout code: `PYTHONPATH=<checkout of slime> just test-slime`.

The case numbers are those of slime's contract: 1 a two-turn rollout becomes training data; 2 over-sampling with partial
rollout aborts, buffers and resumes; 3 a failure inside `generate` does not leave it; 6b a split rollout keeps its
group's normalisation.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_playground.server import serving
from orl_rollout.testing import Fault, FaultKind, SglangServer

from tests.slime import episode

pytestmark = pytest.mark.slime


@pytest.fixture(scope="module")
def environment() -> Iterator[str]:
    with serving(("guessnumber",)) as url:
        yield url


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return episode.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@contextmanager
def engine(checkpoint: Path, faults: list[Fault] | None = None) -> Iterator[SglangServer]:
    """The SGLang stand-in on a thread and loop of its own, as slime's loop is its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = SglangServer(episode.player(checkpoint), faults=faults or [], context_tokens=4000)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def hosting(
    server: SglangServer, checkpoint: Path, tmp_path: Path, config: dict[str, Any], **changes: Any
) -> Iterator[Any]:
    from tests.slime.host import Host, arguments

    post_process = changes.pop("post_process", None)
    tasks = episode.make_tasks(tmp_path / "tasks.jsonl", 8)
    host = Host(arguments(checkpoint, tasks, server.url, config, **changes), post_process=post_process)
    try:
        yield host
    finally:
        host.close()


async def test_1_a_two_turn_rollout_becomes_training_data(environment: str, checkpoint: Path, tmp_path: Path):
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, episode.settings(environment)) as host:
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
        requests = list(server.requests)
    samples = [sample for group in groups for sample in group]
    assert [sample.status.value for sample in samples].count("completed") == 2
    assert sorted(sample.reward for sample in samples) == [0.0, 0.0, 1.0, 1.0]
    assert data["rewards"] == pytest.approx([0.7071 if sample.reward else -0.7071 for sample in samples], abs=1e-3)
    assert len(requests) == 8
    for sample, mask in zip(samples, data["loss_masks"], strict=True):
        assert len(mask) == len(sample.rollout_log_probs) == sample.response_length
        assert 0 < sum(mask) < len(mask)
        mine = [request for request in requests if request.headers["X-SMG-Routing-Key"] == sample.session_id]
        assert len(mine) == 2
        last = mine[-1]
        assert sample.tokens[: len(last.body["input_ids"])] == last.body["input_ids"]
        assert all(
            probability == 0.0 for probability, bit in zip(sample.rollout_log_probs, mask, strict=True) if not bit
        )
        print(f"case 1: mask {sum(mask)}/{len(mask)}, reward {sample.reward}, status {sample.status.value}")


async def test_2_an_aborted_episode_starts_clean_on_the_same_task(environment: str, checkpoint: Path, tmp_path: Path):
    changes = {
        "partial_rollout": True,
        "rollout_batch_size": 1,
        "over_sampling_batch_size": 2,
        "n_samples_per_prompt": 1,
    }
    hang = Fault(kind=FaultKind.HANG, at=0)
    with (
        engine(checkpoint, [hang]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **changes) as host,
    ):
        (first,) = await asyncio.to_thread(host.rollout)
        assert [sample.status.value for sample in first] != ["aborted"]
        assert host.source.get_buffer_length() == 1
        ((aborted,),) = host.source.buffer
        assert aborted.status.value == "aborted"
        assert len(aborted.loss_mask) == len(aborted.rollout_log_probs) == aborted.response_length
        assert aborted.reward is not None
        index = aborted.index
        host.args.over_sampling_batch_size = 1  # what is buffered is all that is played next
        (second,) = await asyncio.to_thread(host.rollout, 1)
        data = host.train_data([first, second])
    assert second[0].index == index
    assert second[0].status.value in ("completed", "truncated")
    assert len(data["tokens"][1]) > second[0].response_length > sum(data["loss_masks"][1]) > 0
    print(f"case 2: aborted, buffered, restarted: {len(data['tokens'][1])} tokens, mask {sum(data['loss_masks'][1])}")


@pytest.mark.parametrize("fault", ["environment", "engine", "bug"])
async def test_3_no_failure_leaves_generate(
    fault: str, environment: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = episode.settings("http://127.0.0.1:9" if fault == "environment" else environment)
    faults = [Fault(kind=FaultKind.STATUS, status=400, message="no") for _ in range(4)] if fault == "engine" else []
    if fault == "bug":

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr("orl_rollout.runtime.rollout", broken)
    changes = {"post_process": "orl_slime.reward.post_process", "n_samples_per_prompt": 1}
    with engine(checkpoint, faults) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    samples = [sample for group in groups for sample in group]
    assert {sample.status.value for sample in samples} == {"failed"}
    assert all(sample.remove_sample for sample in samples)
    assert data["rewards"] == [0.0] * len(samples)
    assert not any(any(mask) for mask in data["loss_masks"])
    assert all(len(sample.rollout_log_probs) == sample.response_length > 0 for sample in samples)
    print(f"case 3, {fault}: {len(samples)} failed samples, none trains, the rollout goes on")


async def generate_and_split(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> list[Any]:
    """A custom generate that fans one rollout out into two siblings, as stripped reasoning will."""
    from orl_slime.generate import generate

    sample = await generate(args, sample, sampling_params, evaluation)
    sample.rollout_id = sample.index
    return [sample, copy.deepcopy(sample)] if sample.reward else [sample]


async def test_6b_uneven_groups_keep_their_own_baseline(environment: str, checkpoint: Path, tmp_path: Path):
    changes = {
        "custom_generate_function_path": "tests.slime.test_real_slime.generate_and_split",
        "post_process": "orl_slime.reward.post_process",
    }
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **changes) as host,
    ):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert len(data["rewards"]) == 6
    expected = [0.7071 if raw else -0.7071 for raw in data["raw_reward"]]
    assert data["rewards"] == pytest.approx(expected, abs=1e-3)
    print(f"case 6b: {len(data['rewards'])} samples of 4 rollouts, rewards {sorted(set(data['rewards']))}")
