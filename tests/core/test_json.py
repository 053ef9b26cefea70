"""Values that travel as JSON come back equal: tasks, jobs, trajectories, data, configurations; and hostile text."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from orl_core.datum import Datum, to_data
from orl_core.messages import Action, ImageBlock, Message, Role, TextBlock, ToolCall, ToolSpec
from orl_core.task import Task, row_of
from orl_core.trajectory import Trajectory

from tests.kit.strategies import json_values, masked_trajectories, stripped_trajectories, tasks

hostile = st.sampled_from(("\x00", "<|im_end|>", "\u2028", "é😀", "\ufffd", "}{", "\\ud800", "x" * 5000)) | st.text()


def again(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


@given(task=tasks, spec=st.dictionaries(hostile, json_values, max_size=2))
def test_a_task_keeps_its_key(task: Task, spec: dict[str, Any]) -> None:
    for one in (task, msgspec.structs.replace(task, task_spec=spec)):
        assert again(one) == one
        assert again(one).key == one.key


@given(trajectory=masked_trajectories | stripped_trajectories, error=hostile, words=hostile)
def test_a_trajectory_and_its_data(trajectory: Trajectory, error: str, words: str) -> None:
    action = Action(text=words, reasoning=words)
    turns = tuple(msgspec.structs.replace(turn, action=action) for turn in trajectory.turns[:1]) + trajectory.turns[1:]
    trajectory = msgspec.structs.replace(trajectory, error=error, turns=turns)
    assert again(trajectory) == trajectory
    data = to_data(trajectory, reward=0.5)
    assert to_data(again(trajectory), reward=0.5) == data
    assert msgspec.json.decode(msgspec.json.encode(data), type=tuple[Datum, ...]) == data


blocks = st.builds(TextBlock, text=hostile) | st.builds(ImageBlock, data=hostile, mime_type=hostile)
arguments = st.dictionaries(hostile, json_values, max_size=2)
messages = st.builds(
    Message,
    role=st.sampled_from(get_args(Role)),
    content=st.lists(blocks, max_size=2).map(tuple),
    calls=st.lists(st.builds(ToolCall, name=hostile, arguments=arguments), max_size=2).map(tuple),
)


@given(opening=st.lists(messages, max_size=3), tool=st.builds(ToolSpec, name=hostile, parameters=arguments), task=tasks)
def test_what_a_session_opens_with(opening: list[Message], tool: ToolSpec, task: Task) -> None:
    assert [again(message) for message in opening] == opening
    assert again(tool) == tool
    assert again(row_of(task)).metadata == task
