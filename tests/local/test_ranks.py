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
from orl_local.engine.fingerprints import fingerprints
from orl_local.engine.local_model import load_model, sharded
from orl_local.engine.served_engine import Engines, ServedEngine, Server
from orl_local.learner import ALONE, CPU, Peers, reference_of
from orl_local.planning import Planned, planned
from orl_local.policy import Child, LocalPolicy, RankDied, Ranks
from orl_local.rank import Met
from orl_rollout.edge.interrupt import SIGNALS
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
from tests.local.stand_in import Direct, Near, served
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


@pytest.mark.parametrize("case", every_fifth(CASES))
def test_ranks_have_the_gradients_of_one(checkpoint: Path, model: Any, case: str) -> None:
    """Three ranks have unequal rows; of seven, one has none."""
    rows, changes = rows_for(model), {"updates": 2, "lr": 1e-2, **CASES[case]}
    expected = step_of(learner_of(checkpoint, **changes), rows)
    for count, parts in ((3, rows), (7, rows_for(model, split=True))):
        for found in together(checkpoint, parts, count, **changes):
            same(found, expected)


def be_a_shard(
    number: int, count: int, meeting: str, checkpoint: Path, rows: Sequence[Row], cases: Sequence[str]
) -> None:
    """Be a rank with sharded weights: save its steps next to `meeting`."""
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


@pytest.mark.parametrize("count", [1, pytest.param(RANKS, marks=pytest.mark.runs)])
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


def plan_of(run: Run, *, sharded: bool = False) -> Planned:
    plan = planned(run)
    return structs.replace(plan, sharded=sharded, schedule=structs.replace(plan.schedule, ahead=True))


@asynccontextmanager
async def placed(run: Run, *, sharded: bool) -> AsyncGenerator[Ranks]:
    async with Ranks(RANKS, sharded=sharded) as ranks:
        await ranks.begin(plan_of(run, sharded=sharded))
        await ranks.call("place")
        yield ranks


async def fingerprints_of(ranks: Ranks) -> list[dict[str, int]]:
    return await asyncio.gather(*(child.call("fingerprints") for child in ranks.children))


async def continues(worker: Near | Ranks, saved: Path, rows: Sequence[Row], folder: Path) -> dict[str, int]:
    """Check that `worker` holds what was `saved`, and sends it after an update. Return its fingerprints."""
    again, sent = folder / "again", folder / "sent"
    await worker.call("save", again, 2)
    same_bits(again, saved)
    await worker.call("take")
    await worker.call("update", list(rows), 3)
    await worker.call("write", sent)
    expected = {name: one.bfloat16() for name, one in load_file(saved / "model.safetensors").items()}
    torch.testing.assert_close(load_file(sent / "model.safetensors"), expected, rtol=0, atol=0)
    return fingerprints(expected.items())


async def refuse(ranks: Ranks, rows: Sequence[Row], folder: Path) -> None:
    """Check that a batch which one rank must refuse, and a save that fails, change nothing and leave no rank alone."""
    before = await fingerprints_of(ranks)
    (folder / "file").touch()
    foreign = structs.replace(rows[-1].datum, logprobs=(-1e12,) * len(rows[-1].datum.response))
    with pytest.raises(EngineError, match="differ"):
        await ranks.call("update", [*rows[:-1], structs.replace(rows[-1], datum=foreign)], 1)
    with pytest.raises(OrlError):
        await ranks.call("save", folder / "file" / "out", 1)
    assert await fingerprints_of(ranks) == before


async def stop(ranks: Ranks, rows: Sequence[Row]) -> None:
    """Check that a stop ends the update of all or of none: ranks are at the gate, or about to be."""
    await ranks.call("update", rows, 1)
    for pause in range(0, 24, 2):
        update = asyncio.create_task(ranks.call("update", rows, 1))
        await asyncio.sleep(pause / 1000)
        ranks.stop()
        with suppress(asyncio.CancelledError):
            await update
        first, second = await fingerprints_of(ranks)
        assert first == second  # and the answers stay those of their questions


async def kill(ranks: Ranks, victim: int, rows: Sequence[Row], folder: Path) -> None:
    """Check that the death of a rank ends the others, in the middle of steps."""
    policy = LocalPolicy(ranks, Engines({}))

    async def steps() -> None:
        for step in range(1, 1000):
            await policy.update(rows, step)
            await policy.save(folder / "checkpoint", step)

    training = asyncio.create_task(steps())
    await asyncio.sleep(0.3)
    processes()[victim].kill()
    with pytest.raises(RankDied):
        await asyncio.wait_for(training, 30)
    with pytest.raises(OrlError):
        await asyncio.wait_for(ranks.call("save", folder / "saved", 1), 30)
    assert not (folder / "saved").exists()


def processes() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "orl_local.rank" in one.cmdline()]


async def end(ranks: Ranks, victim: int, rows: Sequence[Row], folder: Path) -> None:
    """Check that ranks with the same weights refuse, stop and die together, and leave signals to the parent."""
    for process in processes():
        for number in SIGNALS:
            process.send_signal(number)
    first, second = await fingerprints_of(ranks)
    assert first == second
    await refuse(ranks, rows, folder)
    await ranks.call("save", folder / "out", 1)
    assert tensors_of(folder / "out")
    await stop(ranks, rows)
    await kill(ranks, victim, rows, folder)


RANK = pytest.mark.parametrize("rank", [None, pytest.param(4, marks=pytest.mark.runs)])


async def trained(worker: Near | Ranks, rows: Sequence[Row], folder: Path) -> None:
    for step in (1, 2):
        assert (await worker.call("update", rows, step))["grad_norm"] > 0
    await worker.call("save", folder, 2)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [True, pytest.param(False, marks=pytest.mark.runs)])
@RANK
async def test_processes_train_as_one(
    checkpoint: Path, tmp_path: Path, model: Any, rank: int | None, sharded: bool
) -> None:
    """One process continues their checkpoint, and sends what was taken before an update. They end together."""
    one, two = tmp_path / "one", tmp_path / "two"
    changes: dict[str, Any] = {"lora_rank": rank, "kl_coef": 0.1, "num_rollout": 1000}
    run, rows = run_of(tmp_path / "run", checkpoint, **changes), rows_for(model, split=True)
    async with placed(run, sharded=sharded) as ranks, asyncio.timeout(120):
        await trained(Near(run, plan_of(run)), rows, one)
        await trained(ranks, rows, two)
        await end(ranks, 1, rows, tmp_path)
    assert distance(tensors_of(two), tensors_of(one)) < ROUNDING
    assert distance(tensors_of(two), tensors_of(checkpoint)) > 1e-4
    run = run_of(tmp_path / "run", checkpoint, load=str(two), **changes)
    await continues(Near(run, plan_of(run)), two, rows, tmp_path)


@pytest.mark.runs
@RANK
async def test_processes_continue_the_checkpoint_of_one(
    checkpoint: Path, tmp_path: Path, model: Any, rank: int | None
) -> None:
    one, changes = tmp_path / "one", {"lora_rank": rank, "kl_coef": 0.1, "num_rollout": 9}
    run, rows = run_of(tmp_path / "run", checkpoint, **changes), rows_for(model, split=True)
    await trained(Near(run, plan_of(run)), rows, one)
    async with placed(run_of(tmp_path / "run", checkpoint, load=str(one), **changes), sharded=True) as ranks:
        told = await continues(ranks, one, rows, tmp_path)
        assert all(found.items() >= told.items() for found in await fingerprints_of(ranks))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.runs)])
@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.runs)])
async def test_ranks_refuse_stop_and_die_together(
    checkpoint: Path, tmp_path: Path, model: Any, victim: int, sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit", encoding="utf-8")  # ranks import nothing of the user's
    monkeypatch.chdir(tmp_path)
    run, rows = run_of(tmp_path / "run", checkpoint, num_rollout=1000, updates=1), rows_for(model, split=True)
    async with placed(run, sharded=sharded) as ranks, asyncio.timeout(120):
        await end(ranks, victim, rows, tmp_path)


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
