"""Judging: a reward function that hangs costs its own rollout, and what was sampled is on disk before it is asked."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import RunConfig, decode_config
from orl_core.errors import RunAborted
from orl_core.messages import TextBlock, ToolResult
from orl_core.task import Task
from orl_core.trajectory import StopReason, Trajectory
from orl_rollout.episodes.journal import Journal, journal_files, read_journal
from orl_rollout.loop.session import Session
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.episodes import calling
from tests.kit.runtimes import runtime_of
from tests.laws.virtual import ShiftedLoop, VirtualLoop

HERE = "tests.rollout.runtime.test_judging"
ROOT = Path(__file__).parents[3]
PLAIN, ASYNC = f"{HERE}:hangs", f"{HERE}:awaits"
LIMIT = 300.0  # seconds: the default


class Gate:
    """Where the functions of a test wait: for `opened` on a thread, and for ever on the event loop."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.opened = threading.Event()
        self.count = self.most = 0
        self.lock = threading.Lock()

    def wait(self) -> None:
        with self.lock:
            self.count += 1
            self.most = max(self.most, self.count)
        self.inside.release()
        self.opened.wait(60)
        with self.lock:
            self.count -= 1

    async def entered(self, calls: int) -> None:
        """Wait until so many calls more are inside."""
        for _ in range(calls):
            assert await asyncio.to_thread(self.inside.acquire, timeout=60)


GATES = [Gate()]


@pytest.fixture
def gate() -> Generator[Gate]:
    GATES.append(Gate())
    yield GATES[-1]
    GATES[-1].opened.set()


def hangs(trajectory: Trajectory) -> float:
    if trajectory.job.task.index == 0:
        waits_in_a_vault()
    return 1.0


def waits_in_a_vault() -> None:
    GATES[-1].wait()


async def awaits(trajectory: Trajectory) -> float:
    if trajectory.job.task.index == 0:
        GATES[-1].inside.release()
        await deep()
    return 1.0


async def deep() -> None:
    await asyncio.Event().wait()


async def deaf(_: Trajectory) -> float:
    while True:
        try:
            await deep()
        except asyncio.CancelledError:
            continue


async def takes_two_hundred(_: Trajectory) -> float:
    await asyncio.sleep(200.0)
    return 0.5


async def counts_turns(trajectory: Trajectory, environment: Any) -> float:
    await asyncio.sleep(0)
    return len(trajectory.turns) + environment.success_reward


async def exits(_: Trajectory) -> float:
    sys.exit(2)


async def cancels(_: Trajectory) -> float:
    raise asyncio.CancelledError


async def raises(_: Trajectory) -> float:
    raise KeyError("answer")


async def says(_: Trajectory) -> str:
    return "0.5"


class Sessions:
    def session(self, task: Task) -> Session:
        said = (TextBlock(text="the password: open sesame"),)
        return ScriptedSession([ToolResult(name="act", content=said, reward=0.25, finished=True)])


def config_of(reward: str, **fields: Any) -> RunConfig:
    rollout = {name: fields.pop(name) for name in ("reward_timeout", "reward_concurrency") if name in fields}
    return decode_config({"environments": {"A/B": {}}, "reward": reward, "rollout": rollout, **fields}, "test")


def playing(
    reward: str, journal: Journal | None = None, **fields: Any
) -> Callable[[int], Coroutine[Any, Any, Outcome]]:
    """Return what plays the task of an index; the functions here hang on task 0."""
    runtime: Runtime = runtime_of(config_of(reward, **fields), Sessions(), journal=journal)

    async def play(index: int) -> Outcome:
        task = Task(env_name="A/B", deployment_name="A/B", index=index)
        return await runtime.play(RolloutRequest(task=task, rollout_id=f"r{index}"), ScriptedEngine([calling("act")]))

    return play


def all_at(play: Callable[[int], Coroutine[Any, Any, Outcome]], indexes: Iterable[int]) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(play(index)) for index in indexes]


def run(main: Callable[[], Coroutine[Any, Any, None]], loop: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def pass_time(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShiftedLoop)
    loop.ahead += seconds
    await asyncio.sleep(0.01)


async def late(hanging: asyncio.Task[Outcome]) -> Outcome:
    while not hanging.done():
        await pass_time(LIMIT)
    return await hanging


@pytest.mark.parametrize("reward", [PLAIN, ASYNC])
def test_call_that_hangs_is_an_error_of_its_rollout(reward: str, gate: Gate) -> None:
    async def main() -> None:
        play = playing(reward, secrets={"k": "waits_in_a_vault"})
        hanging = asyncio.create_task(play(0))
        await gate.entered(1)
        others = await asyncio.gather(*all_at(play, range(1, 40)))
        assert [outcome.reward for outcome in others] == [1.0] * 39
        await pass_time(LIMIT / 2)  # a busy machine takes seconds of its own
        assert not hanging.done()
        outcome = await late(hanging)
        assert (outcome.trajectory.stop_reason, outcome.reward) == (StopReason.ERROR, 0.0)
        assert not any(datum.trainable for datum in outcome.datums)
        assert all(said in outcome.trajectory.error for said in (f"`{reward}`", f"{LIMIT:g} s"))
        assert len(outcome.trajectory.turns) == 1

    run(main, ShiftedLoop)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [({}, LIMIT), ({"rollout": {"rollout_timeout": 7, "turn_timeout": 7, "call_timeout": 7}}, 7.0)],
)
def test_limit_is_that_of_a_short_rollout(fields: dict[str, Any], seconds: float, gate: Gate) -> None:
    async def main() -> None:
        outcome = await playing(ASYNC, **fields)(0)
        assert outcome.trajectory.stop_reason is StopReason.ERROR
        assert seconds <= asyncio.get_running_loop().time() < seconds + 1

    run(main, VirtualLoop)


@pytest.mark.parametrize(("settings", "seconds"), [({}, 200.0), ({"reward_concurrency": 6}, 1600.0)])
def test_limit_counts_from_the_start_of_a_call(settings: dict[str, Any], seconds: float) -> None:
    """48 calls of an `async def` wait on the event loop, 64 at once or in turns."""

    async def main() -> None:
        outcomes = await asyncio.gather(*all_at(playing(f"{HERE}:takes_two_hundred", **settings), range(48)))
        assert [outcome.reward for outcome in outcomes] == [0.5] * 48
        assert asyncio.get_running_loop().time() == pytest.approx(seconds)

    run(main, VirtualLoop)


@pytest.mark.parametrize(("settings", "most"), [({}, (os.cpu_count() or 1) + 4), ({"reward_concurrency": 3}, 3)])
async def test_plain_calls_at_once_are_bounded(settings: dict[str, Any], most: int, gate: Gate) -> None:
    tasks = all_at(playing(PLAIN, **settings), [0] * (most + 5))
    await gate.entered(most)
    assert not gate.inside.acquire(timeout=0.2)
    gate.opened.set()
    assert [outcome.reward for outcome in await asyncio.gather(*tasks)] == [1.0] * (most + 5)
    assert gate.most == most


async def test_async_answer_is_the_reward() -> None:
    assert (await playing(f"{HERE}:counts_turns")(1)).reward == 2.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exits", "sys.exit"),
        ("cancels", "CancelledError"),
        ("raises", "KeyError: 'answer'"),
        ("says", "returned '0.5'"),
    ],
)
async def test_fault_of_async_function_is_an_error(name: str, said: str) -> None:
    trajectory = (await playing(f"{HERE}:{name}")(1)).trajectory
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error.startswith(f"the reward function `{HERE}:{name}`: ")
    assert said in trajectory.error


def test_calls_that_never_come_back_end_the_run(gate: Gate) -> None:
    async def main() -> None:
        play = playing(PLAIN, reward_concurrency=2)
        for number in range(2):
            hanging = asyncio.create_task(play(0))
            await gate.entered(1)
            if number:
                with pytest.raises(RunAborted, match=f"`{PLAIN}`") as ended:
                    await late(hanging)
                assert "\n" not in str(ended.value)
            else:
                assert (await late(hanging)).trajectory.stop_reason is StopReason.ERROR

    run(main, ShiftedLoop)


def test_call_that_comes_back_late_is_forgiven(gate: Gate) -> None:
    async def main() -> None:
        play = playing(PLAIN, reward_concurrency=2)
        for _ in range(3):
            hanging = asyncio.create_task(play(0))
            await gate.entered(1)
            assert (await late(hanging)).trajectory.stop_reason is StopReason.ERROR
            gate.opened.set()
            while threads := [one for one in threading.enumerate() if one.name == "orl-work"]:
                await asyncio.to_thread(threads[0].join, 60)
            gate.opened.clear()

    run(main, ShiftedLoop)


def test_async_call_that_is_cancelled_has_come_back(gate: Gate) -> None:
    async def main() -> None:
        play = playing(ASYNC, reward_concurrency=1)
        for _ in range(3):
            assert (await play(0)).trajectory.stop_reason is StopReason.ERROR
        assert (await play(1)).reward == 1.0

    run(main, VirtualLoop)


def test_async_call_that_ignores_its_end_never_comes_back() -> None:
    async def main() -> None:
        with pytest.raises(RunAborted, match="deaf"):
            await playing(f"{HERE}:deaf", reward_concurrency=1)(0)
        (deaf_task,) = asyncio.all_tasks() - {asyncio.current_task()}
        deaf_task.get_coro().close()  # type: ignore[union-attr]

    run(main, VirtualLoop)


def read(folder: Path) -> list[tuple[str, StopReason, int, float]]:
    return [
        (one.key, one.trajectory.stop_reason, sum(len(turn.action_ids) for turn in one.trajectory.turns), one.reward)
        for one in read_journal(folder)
    ]


def unjudged_files(folder: Path) -> list[Path]:
    return [*folder.glob("unjudged-*")]


SAMPLED = len(calling("act").token_ids)
JUDGED = ("r0", StopReason.FINISHED, SAMPLED, 1.0)
UNJUDGED = ("r0", StopReason.ABORTED, SAMPLED, 0.0)


async def test_what_was_sampled_is_on_disk_before_its_judgement(tmp_path: Path, gate: Gate) -> None:
    with Journal(tmp_path) as journal:
        hanging = asyncio.create_task(playing(PLAIN, journal)(0))
        await gate.entered(1)
        assert read(tmp_path) == [UNJUDGED]
        (kept,) = unjudged_files(tmp_path)
        assert kept.stat().st_mode & 0o077 == 0
        unjudged = kept.read_bytes()
        gate.opened.set()
        await hanging
    assert read(tmp_path) == [JUDGED]
    assert not unjudged_files(tmp_path)
    assert journal_files(tmp_path)[0].stat().st_size < 1.2 * len(unjudged)
    kept.write_bytes(unjudged)  # the process died between the record and the end of the file
    assert read(tmp_path) == [JUDGED]


async def test_cancelled_judgement_leaves_what_was_sampled(tmp_path: Path, gate: Gate) -> None:
    with Journal(tmp_path) as journal:
        hanging = asyncio.create_task(playing(PLAIN, journal, secrets={"k": "open sesame"})(0))
        await gate.entered(1)
        hanging.cancel()
        await asyncio.wait([hanging])
    (entry,) = read_journal(tmp_path)
    assert (entry.key, entry.trajectory.stop_reason) == ("r0", StopReason.ABORTED)
    assert entry.trajectory.contains_secret
    assert "sesame" not in repr(entry)


async def test_disk_that_takes_no_unjudged_rollout_ends_the_run(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        (tmp_path / "run").rename(tmp_path / "gone")
        with pytest.raises(RunAborted, match="recorded"):
            await playing(PLAIN, journal)(1)


@pytest.mark.slow
def test_process_ends_while_judging_and_loses_nothing(tmp_path: Path, gate: Gate) -> None:
    program = f"""
import asyncio
from {HERE} import GATES, PLAIN, Journal, all_at, playing
async def main():
    tasks = all_at(playing(PLAIN, Journal({str(tmp_path)!r})), [0])
    await GATES[-1].entered(1)
    print("judging", flush=True)
    await tasks[0]
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"judging\n"
        child.kill()
    assert read(tmp_path) == [UNJUDGED]
    gate.opened.set()
    with Journal(tmp_path) as journal:  # the next process plays it again: it counts once
        asyncio.run(playing(PLAIN, journal)(0))
    assert read(tmp_path) == [JUDGED]
