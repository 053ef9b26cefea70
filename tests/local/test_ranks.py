"""Ranks of a run train as one: the same gradients for each algorithm, and an end in bounded time when one dies."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import EngineError, OrlError
from orl_local import policy
from orl_local.batch import Member, batch_of, members_of, part_of
from orl_local.engine.local_model import load_model
from orl_local.engine.served_engine import Engines, ServedEngine, Server
from orl_local.engine.shards import sharded
from orl_local.engine.weights import fingerprints
from orl_local.learner import ALONE, CPU, Peers, reference_of
from orl_local.planning import planned
from orl_local.policy import Child, LocalPolicy, RankDied, Ranks
from orl_local.rank import Met
from orl_rollout.run_folder.contract import Run
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.training.rows import Row
from safetensors.torch import load_file
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn

from tests.kit.quick import every_fifth
from tests.local.checkpoints import weights_of
from tests.local.distance import ROUNDING, distance
from tests.local.fakes import make_run
from tests.local.stand_in import Direct, served
from tests.local.test_checkpoints import same as same_bits
from tests.local.test_learner import CASES, same
from tests.local.updates import SETTINGS, Step, learner_of, rows_for, step_of

RANKS = 2


def member(rollout: int, length: int) -> Member:
    return Member(rollout=rollout, token_ids=(1,) * length, places=[], ids=None, alone=True)  # pyright: ignore[reportArgumentType]


@given(rows=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 50)), max_size=30), count=st.integers(1, 4))
def test_each_rank_has_whole_rollouts_of_about_as_many_ids(rows: list[tuple[int, int]], count: int) -> None:
    members = [member(*row) for row in rows]
    parts = [part_of(members, number, count) for number in range(count)]
    assert sorted(id(one) for part in parts for one in part) == sorted(map(id, members))
    owners = [{one.rollout for one in part} for part in parts]
    assert sum(map(len, owners)) == len({one.rollout for one in members})
    sizes = [sum(len(one.token_ids) for one in part) for part in parts]
    rollouts = [sum(len(one.token_ids) for one in members if one.rollout == rollout) for rollout, _ in rows]
    assert max(sizes) - min(sizes) <= max(rollouts, default=0)


class Thread(Peers):
    """A rank on a thread: all add what they have on a table."""

    def __init__(self, number: int, count: int, table: dict[int, list[Tensor]], barrier: Barrier) -> None:
        self.number, self.count, self._table, self._barrier = number, count, table, barrier

    def add(self, trained: Sequence[Tensor], sums: Tensor) -> None:
        for one in trained:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad
        own = [sums, *(one.grad for one in trained if one.grad is not None)]
        self._table[self.number] = [one.clone() for one in own]
        self._barrier.wait(60)
        for place, one in enumerate(own):
            one.copy_(torch.stack([self._table[number][place] for number in range(self.count)]).sum(0))
        self._barrier.wait(60)


def together(checkpoint: Path, rows: Sequence[Row], count: int, **changes: Any) -> list[Step]:
    """Return the step of each of `count` ranks."""
    table, barrier = dict[int, list[Tensor]](), Barrier(count)
    learners = [
        learner_of(checkpoint, peers=Thread(number, count, table, barrier), **changes) for number in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda learner: step_of(learner, rows), learners))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("case", every_fifth(CASES))
def test_ranks_have_the_gradients_of_one(checkpoint: Path, model: Any, case: str, split: bool) -> None:
    """Three ranks have unequal rows; of seven, one has none."""
    rows, changes = rows_for(model, split=split), {"updates": 2, "lr": 1e-2, **CASES[case]}
    expected = step_of(learner_of(checkpoint, **changes), rows)
    for count in (3, 7):
        for found in together(checkpoint, rows, count, **changes):
            same(found, expected)


def be_a_shard(
    number: int, count: int, meeting: str, checkpoint: Path, rows: Sequence[Row], cases: Sequence[str]
) -> None:
    """Be a rank with sharded weights: save its steps next to `meeting`."""
    torch.set_num_threads(1)
    peers: Any = Met(number, count, meeting, cast("Any", None), sharded=True)
    torch.save([tuple(one) for one in steps_of(checkpoint, rows, cases, peers)], f"{meeting}{number}")
    first = sharded(load_model(str(checkpoint)))
    reference_of(None, structs.replace(SETTINGS, kl_coef=1.0), first)(  # pyright: ignore[reportOptionalCall]
        batch_of(members_of([rows], SETTINGS)[0], CPU)
    )
    assert all(isinstance(one, DTensor) for one in first.parameters())
    distributed.destroy_process_group()


def steps_of(checkpoint: Path, rows: Sequence[Row], cases: Sequence[str], peers: Peers = ALONE) -> list[Step]:
    """Return steps on all rows, and on the last one. The base of adapters is in bf16."""
    steps: list[Step] = []
    for changes in map(CASES.__getitem__, cases):
        base: Any = load_model(str(checkpoint))
        base.to(torch.bfloat16 if "lora_rank" in changes else torch.float32)
        learner = learner_of(checkpoint, base, peers, updates=2, lr=1e-2, tokens=1, recompute=True, **changes)
        steps += [step_of(learner, rows[start:]) for start in (0, 5)]
    return steps


@pytest.mark.parametrize("count", [1, pytest.param(RANKS, marks=pytest.mark.slow)])
def test_shards_have_the_gradients_of_one(
    checkpoint: Path, tmp_path: Path, model: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks one has more micro-batches than the other, and then all rows."""
    meeting, rows, cases = str(tmp_path / "meeting"), rows_for(model), [*CASES] if count > 1 else ["lora"]
    for name in ("NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
    if count > 1:
        spawn(be_a_shard, (count, meeting, checkpoint, rows, cases), count)
    else:
        be_a_shard(0, count, meeting, checkpoint, rows, cases)
    expected = steps_of(checkpoint, rows, cases)
    for number in range(count):
        for found, one in zip(torch.load(f"{meeting}{number}"), expected, strict=True):
            same(Step(*found), one)
            pairs = zip(found[0][0], one.gradients[0], strict=True)
            most = max(float(each.abs().max()) for each in one.gradients[0])
            assert max(float((ours - theirs).abs().max()) for ours, theirs in pairs) < 1e-6 * most


def tensors_of(folder: Path) -> list[Tensor]:
    return [*weights_of(folder).values()]


def run_of(folder: Path, checkpoint: Path, **trainer: Any) -> Run:
    return make_run(folder, checkpoint, max_logprob_difference=1e9, **trainer)


@asynccontextmanager
async def placed(run: Run, count: int = RANKS, *, sharded: bool = False) -> AsyncGenerator[Ranks]:
    async with Ranks(count, sharded=sharded) as ranks:
        plan = planned(run)
        ahead = structs.replace(plan.schedule, ahead=True)
        await ranks.begin(structs.replace(plan, sharded=sharded, schedule=ahead))
        await ranks.call("place")
        yield ranks


async def fingerprints_of(ranks: Ranks) -> list[dict[str, int]]:
    return await asyncio.gather(*(child.call("fingerprints") for child in ranks.children))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("rank", [None, 4])
async def test_processes_train_as_one(
    checkpoint: Path, tmp_path: Path, model: Any, rank: int | None, sharded: bool
) -> None:
    """Each checkpoint is that of the others, whichever ranks continue it. They send what was taken before an update."""
    one, two, again, sent = (tmp_path / name for name in ("one", "two", "again", "sent"))
    changes: dict[str, Any] = {"lora_rank": rank, "kl_coef": 0.1, "num_rollout": 9}
    run, rows = run_of(tmp_path / "run", checkpoint, **changes), rows_for(model, split=True)
    for count, folder in ((1, one), (RANKS, two)):
        async with placed(run, count, sharded=sharded and count > 1) as ranks:
            for step in (1, 2):
                assert (await ranks.call("update", rows, step))["grad_norm"] > 0
            await ranks.call("save", folder, 2)
            first, *others = await fingerprints_of(ranks)
            assert all(other == first for other in others)
    assert distance(tensors_of(two), tensors_of(one)) < ROUNDING
    assert distance(tensors_of(two), tensors_of(checkpoint)) > 1e-4
    for count, folder in ((1, two), (RANKS, one)) if sharded else ():
        run = run_of(tmp_path / "run", checkpoint, load=str(folder), **changes)
        async with placed(run, count, sharded=count > 1) as ranks:
            await ranks.call("save", again, 2)
            same_bits(again, folder)
            await ranks.call("take")
            await ranks.call("update", rows, 3)
            await ranks.call("write", sent)
            expected = {name: one.bfloat16() for name, one in load_file(folder / "model.safetensors").items()}
            torch.testing.assert_close(load_file(sent / "model.safetensors"), expected, rtol=0, atol=0)
            for told in await fingerprints_of(ranks):
                assert told.items() >= fingerprints(expected.items()).items()


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("victim", range(RANKS))
async def test_death_of_a_rank_ends_the_others(
    checkpoint: Path, tmp_path: Path, model: Any, victim: int, sharded: bool
) -> None:
    run, rows = run_of(tmp_path / "run", checkpoint, num_rollout=1000), rows_for(model, split=True)
    async with placed(run, sharded=sharded) as ranks:
        policy = LocalPolicy(ranks, Engines({}))

        async def steps() -> None:
            for step in range(1, 1000):
                await policy.update(rows, step)
                await policy.save(tmp_path / "checkpoint", step)

        training = asyncio.create_task(steps())
        await asyncio.sleep(1.0)
        processes = [one for one in psutil.Process().children() if "orl_local.rank" in one.cmdline()]
        processes[victim].kill()
        with pytest.raises(RankDied):
            await asyncio.wait_for(training, 30)
        with pytest.raises(OrlError):
            await asyncio.wait_for(ranks.call("save", tmp_path / "saved", 1), 30)
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
async def test_batch_that_is_refused_is_applied_in_no_rank(
    checkpoint: Path, tmp_path: Path, model: Any, sharded: bool
) -> None:
    run, rows = make_run(tmp_path / "run", checkpoint, max_logprob_difference=1e-9), rows_for(model, split=True)
    async with placed(run, sharded=sharded) as ranks:
        before = await fingerprints_of(ranks)
        with pytest.raises(EngineError, match="differ"):
            await asyncio.wait_for(ranks.call("update", rows, 1), 60)
        assert await fingerprints_of(ranks) == before


@pytest.mark.slow
async def test_save_that_fails_leaves_no_shard_alone(checkpoint: Path, tmp_path: Path) -> None:
    async with placed(run_of(tmp_path / "run", checkpoint), sharded=True) as ranks, asyncio.timeout(60):
        with pytest.raises(OrlError):
            await ranks.call("save", checkpoint / "config.json" / "out", 1)
        await ranks.call("save", tmp_path / "out", 1)
    assert tensors_of(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
async def test_stop_ends_the_update_of_all_or_of_none(
    checkpoint: Path, tmp_path: Path, model: Any, sharded: bool
) -> None:
    """It may come when ranks are at the gate, or about to be. The answers stay those of their questions."""
    run, rows = run_of(tmp_path / "run", checkpoint, num_rollout=1000, updates=1), rows_for(model, split=True)
    async with placed(run, sharded=sharded) as ranks, asyncio.timeout(120):
        await ranks.call("update", rows, 1)
        for pause in range(0, 24, 2):
            update = asyncio.create_task(ranks.call("update", rows, 1))
            await asyncio.sleep(pause / 1000)
            ranks.stop()
            with suppress(asyncio.CancelledError):
                await update
            first, second = await fingerprints_of(ranks)
            assert first == second


class Refusing(Child):
    """A rank that cannot do `what`."""

    def __init__(self, what: str) -> None:
        self.what = what

    async def call(self, name: str, *arguments: Any) -> Any:
        if name == self.what:
            raise OrlError("no such GPU")

    def kill(self) -> None:
        pass


class Stuck(Refusing):
    """A rank that waits for another one in what this has left, until it is killed."""

    async def call(self, name: str, *arguments: Any) -> Any:
        if name == self.what:
            self.killed = asyncio.Event()
            await self.killed.wait()
            raise RankDied("killed")

    def kill(self) -> None:
        self.killed.set()


async def test_rank_without_memory_ends_those_with_its_weights(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FAIL_SECONDS", 0.01)
    ranks = Ranks(RANKS, sharded=True)
    async with ranks:
        ranks.children = [Stuck("update"), Refusing("update")]
        await ranks.begin(planned(run_of(tmp_path / "run", checkpoint)))
        with pytest.raises(OrlError, match="no such GPU"):
            await asyncio.wait_for(ranks.call("update", [], 1), 30)


@pytest.mark.slow
async def test_rank_that_cannot_begin_ends_the_others(checkpoint: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", checkpoint)
    async with Ranks(RANKS) as ranks:
        ranks.children[1] = Refusing("begin")
        with pytest.raises(OrlError, match="no such GPU"):
            await asyncio.wait_for(ranks.begin(planned(run)), 30)


async def test_engine_that_is_alone_travels(tmp_path: Path, model: Any) -> None:
    """Processes of `rollout.workers` take a client of an address."""
    rank, server = Direct(model), Server(url="http://127.0.0.1:9", context_tokens=4096, folder=tmp_path)
    engines = Engines({ServedEngine(rank, server): rank})
    assert isinstance(pickle.loads(pickle.dumps(engines.client())), SglangEngine)


async def test_rollouts_stay_with_their_engine(tmp_path: Path, model: Any) -> None:
    asked = {"max_new_tokens": 3, "temperature": 1.0, "stop_token_ids": []}
    rank = Direct(model)
    with served() as (first, _), served() as (second, _):
        servers = (first, second)
        for number, server in enumerate(servers):
            server.score = lambda _prompt, ids: [-1.0] * len(ids)
            (tmp_path / str(number)).mkdir()
        engines = Engines(
            {
                ServedEngine(rank, Server(url=one.url, context_tokens=4096, folder=tmp_path / str(number))): rank
                for number, one in enumerate(servers)
            }
        )
        async with engines:
            await engines.publish("0")
            for turn in range(3):
                for rollout in range(4):
                    await engines.client().generate((1, 2, turn), asked, key=f"train/1/{rollout}")
            await engines.release()
        counts = [sum("input_ids" in one.body for one in server.requests) for server in servers]
        assert counts == [6, 6]
        assert [server.weight_version for server in servers] == ["0", "0"]
