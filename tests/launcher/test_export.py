"""`orl export`: every episode becomes chat data, and other programs load each format."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core.messages import Action, FailureKind, Message, ParseFailure, TextBlock, ToolCall, ToolResult, text_message
from orl_core.trajectory import Generation, Trajectory, Turn
from orl_launcher.commands.export import write
from orl_launcher.conversations import ChatRow, rows_of
from orl_launcher.main import main
from orl_rollout.edge import interrupt
from orl_rollout.episodes.journal import read_journal

from tests.kit.journalled import entry_of, trajectory_of
from tests.kit.journalled import write as write_journal
from tests.launcher.synthetic import make_run


def turn_of(text: str, continues: int | None = None, messages: tuple[Message, ...] = ()) -> Turn:
    generation = Generation(token_ids=(7, 8), logprobs=(-0.5, -0.25), finish_reason="stop")
    action = Action(text=text)
    return Turn(observation=(1, 2), generations=(generation,), action=action, continues=continues, messages=messages)


def rows(trajectory: Trajectory, *, ids: bool = False) -> list[ChatRow]:
    return list(rows_of(entry_of(trajectory), ids=ids))


def test_messages_have_calls_and_results_in_order() -> None:
    (row,) = rows(trajectory_of(turns=2), ids=True)
    assert [message.role for message in row.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message.tool_call_id for message in row.messages[2::2]] == ["call_0", "call_1"]
    (call,) = row.messages[1].tool_calls
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("call_0", "say", {"text": "ok"})
    assert row.messages[1].reasoning_content == "hm"
    assert (row.reward, row.step, row.environment) == (0.5, 9, "a/b")
    (datum,) = row.data
    assert datum.prompt_ids == (1, 2, 3)
    assert datum.response_ids == (5, 6, 1, 2, 3, 5, 6)
    assert datum.loss_mask == (1, 1, 0, 0, 0, 1, 1)


def test_call_that_could_not_be_parsed_is_text() -> None:
    failure = ParseFailure(kind=FailureKind.INVALID_JSON, message="no JSON", text="<tool_call>{")
    (row,) = rows(trajectory_of(calls=(failure, ToolCall(name="say"))))
    assert row.messages[1].content == "ok\n<tool_call>{"
    assert [call.id for call in row.messages[1].tool_calls] == ["call_0"]
    assert [message.tool_call_id for message in row.messages[2:]] == [None, "call_0"]


def test_branches_are_conversations() -> None:
    user = (text_message("user", "Say it."),)
    answer = (Message(role="tool", content=(TextBlock(text="from the agent"),), name="t"),)
    first = Turn(
        observation=(1,),
        generations=(),
        action=Action(calls=(ToolCall(name="t"),)),
        results=(ToolResult(name="t", content=(TextBlock(text="from orl"),)),),
        messages=user,
    )
    turns = (first, turn_of("left", 0, answer), turn_of("right", 0, answer), turn_of("alone", -1, user))

    left, right, alone = rows(msgspec.structs.replace(trajectory_of(), turns=turns), ids=True)
    assert [message.content for message in left.messages] == ["Say it.", "", "from the agent", "left"]
    assert [message.content for message in right.messages] == ["Say it.", "", "from the agent", "right"]
    assert [message.content for message in alone.messages] == ["Say it.", "alone"]
    assert [row.conversation for row in (left, right, alone)] == [0, 1, 2]
    assert left.data
    assert not right.data


def test_failed_episode_has_no_reward() -> None:

    (row,) = rows(msgspec.structs.replace(trajectory_of(turns=0), error="dead", messages=()))
    assert (row.reward, row.error, row.messages) == (None, "dead", ())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("export") / "demo", steps=2)
    write_journal(folder, trajectory_of("\ud800 lone \x00", key="odd"), name="9")
    return folder


def test_jsonl_has_a_line_for_each_episode(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["export", str(made), "--output", str(out), "--ids"]) == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == len(list(read_journal(made))) == 7
    assert not any(sum(datum["loss_mask"]) for line in lines[:6] for datum in line["data"])  # held-out
    assert sum(lines[6]["data"][0]["loss_mask"]) == 2
    assert main(["export", str(made), "--output", str(out)]) == 2


def test_signal_ends_an_export_without_a_file(tmp_path: Path) -> None:
    def interrupted() -> Iterator[ChatRow]:
        for _ in range(3):
            yield from rows(trajectory_of())
            signal.raise_signal(signal.SIGINT)

    with interrupt.listening(), pytest.raises(KeyboardInterrupt):
        write(interrupted(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_remains_of_a_killed_export_are_replaced(made: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.part").write_bytes(b"half a row")
    assert main(["export", str(made), "--output", str(tmp_path / "out")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out").read_bytes().startswith(b"half")


def test_run_without_episodes_writes_nothing(tmp_path: Path) -> None:
    journal = tmp_path / "journal-1.jsonl.zst"
    journal.write_bytes(b"")
    assert main(["export", str(journal), "--output", str(tmp_path / "out.jsonl")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == [journal.name]


@pytest.mark.slow
def test_datasets_loads_what_is_written(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    out = str(tmp_path / "episodes.jsonl")
    assert main(["export", str(made), "--output", out]) == 0
    rows: Any = datasets.load_dataset("json", data_files=out, split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 7
    assert json.loads(rows[0]["messages"][0]["tool_calls"][0]["function"]["arguments"]) == {"number": 19}
    assert rows[0]["reward"] == 0.0
