"""The journal: on disk when `record` returns, readable after any death, without secrets."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from orl_core.config import decode_config
from orl_core.errors import OrlError
from orl_core.messages import Action, TextBlock, ToolCall, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, Job, StopReason, Trajectory, Turn
from orl_rollout.journal import Journal, read_journal
from orl_rollout.outcome import outcome_of

SECRET = "sk-very-secret-value"
CONFIG = decode_config({"environments": {"a/b": {}}, "secrets": {"some_key": SECRET}}, "test")


def trajectory_of(text="ok", key="r1", ids=(5, 6)):
    generation = Generation(ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop", extras={"experts": object()})
    call = ToolCall(name="say", arguments={"text": text})
    result = ToolResult(name="say", content=(TextBlock(text=text),), reward=1.0, finished=True)
    turn = Turn(
        observation=(1, 2, 3), generations=(generation,), action=Action(text=text, calls=(call,)), results=(result,)
    )
    task = Task(env_name="a/b", deployment_name="a/b", index=0, task_spec={"n": 1})
    job = Job(task=task, key=key, sampling={"temperature": 1.0, "odd": object})
    return Trajectory(job=job, turns=(turn,), stop_reason=StopReason.FINISHED, seconds=1.5)


def outcome(*args, **settings):
    return outcome_of(trajectory_of(*args, **settings), CONFIG.environments["a/b"])


async def test_an_entry_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "journal.jsonl"
    with Journal(path, CONFIG) as journal:
        recorded = await journal.record(outcome("läuft \ud800"), step=4)
        assert recorded.data[0].trains
        (entry,) = read_journal(path)
    assert (entry.key, entry.reward, entry.success, entry.step, entry.version) == ("r1", 1.0, True, 4, 1)
    turn = entry.trajectory.turns[0]
    assert (turn.observation, turn.action_ids) == ((1, 2, 3), (5, 6))
    assert turn.generations[0].logprobs == (-0.5, -0.5)
    assert turn.generations[0].extras == {}
    assert turn.action.text == "läuft \ufffd"


@pytest.mark.parametrize("echo", [SECRET, f'{{"k": "{SECRET}"}}', "c2stdmVyeS1zZWNyZXQtdmFsdWU="])
async def test_an_echoed_secret_is_not_written_and_does_not_train(tmp_path, echo):
    path = tmp_path / "journal.jsonl"
    seen = []
    with Journal(path, CONFIG, then=seen.append) as journal:
        recorded = await journal.record(outcome(f"the key is {echo}."))
    assert recorded.trajectory.leaked
    assert recorded.trajectory.turns[0].action_ids == (5, 6)
    assert not recorded.data[0].trains
    assert echo not in path.read_text()
    (entry,) = read_journal(path)
    assert entry.trajectory.leaked
    assert entry.trajectory.turns[0].observation == entry.trajectory.turns[0].action_ids == ()
    assert "[secret]" in entry.trajectory.turns[0].action.text
    assert seen == [entry]


async def test_a_number_is_no_secret(tmp_path):
    config = decode_config({"environments": {"a/b": {}}, "secrets": {"pin": "12345"}}, "test")
    with Journal(tmp_path / "journal.jsonl", config) as journal:
        assert not (await journal.record(outcome(ids=(12345, 6)))).trajectory.leaked


async def test_a_torn_last_line_is_skipped_and_the_next_entry_is_whole(tmp_path, caplog):
    path = tmp_path / "journal.jsonl"
    with Journal(path, CONFIG) as journal:
        await journal.record(outcome(key="r1"))
        await journal.record(outcome(key="r2"))
    whole = path.read_bytes()
    for cut in (1, 40, len(whole) // 3):
        path.write_bytes(whole[:-cut])
        with Journal(path, CONFIG) as journal:
            await journal.record(outcome(key="r3"))
        with caplog.at_level(logging.WARNING):
            keys = [entry.key for entry in read_journal(path)]
        assert keys == (["r1", "r2", "r3"] if cut == 1 else ["r1", "r3"])
    assert "journal.jsonl:2 is skipped" in caplog.text


def test_an_entry_survives_the_death_of_the_process(tmp_path):
    path = tmp_path / "journal.jsonl"
    program = f"""
import asyncio, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_journal import CONFIG, Journal, outcome
async def main():
    await Journal({str(path)!r}, CONFIG).record(outcome(key="last words"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [entry.key for entry in read_journal(path)] == ["last words"]


def test_lines_of_several_writers_do_not_mix(tmp_path):
    path = tmp_path / "journal.jsonl"
    text = "x" * 100_000

    def write(name):
        async def main():
            with Journal(path, CONFIG) as journal:
                for number in range(20):
                    await journal.record(outcome(text, key=f"{name}{number}"))

        asyncio.run(main())

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({entry.key for entry in read_journal(path)}) == 80


async def test_a_journal_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OrlError, match="opening the journal"):
        Journal(tmp_path / "file" / "journal.jsonl", CONFIG)
    with pytest.raises(OrlError, match="reading the journal"):
        list(read_journal(tmp_path / "nothing.jsonl"))
    with Journal("/dev/full", CONFIG) as journal, pytest.raises(OrlError, match="writing the journal"):
        await journal.record(outcome())
