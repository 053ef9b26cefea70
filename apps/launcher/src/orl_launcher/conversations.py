"""The conversations of an episode as rows of chat data, for `orl export` and `orl show --json`. Pure.

An episode of the loop is one conversation. An agent's episode may branch: then each way from a beginning to an end is
one. Arguments of calls and schemas of tools are JSON text, so that every row has the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct
from orl_core import Block, ImageBlock, ToolCall, Trajectory, to_data
from orl_core.text import clean, map_strings
from orl_core.tools.format import for_chat_template
from orl_rollout.episodes.conversation import conversation
from orl_rollout.episodes.journal import Entry


class Function(Struct, frozen=True, kw_only=True):
    """A function that is called. `arguments` is a JSON object as text."""

    name: str
    arguments: str


class Call(Struct, frozen=True, kw_only=True):
    """A tool call of an assistant's message."""

    id: str
    function: Function
    type: str = "function"


class ChatMessage(Struct, frozen=True, kw_only=True):
    """A message in the chat format. `tool_calls` and `reasoning_content` belong to the assistant."""

    role: str
    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[Call, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class DatumRow(Struct, frozen=True, kw_only=True):
    """A row of training data. `loss_mask`, `sampled` and `logprobs` are as long as `response_ids`."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]


class ChatRow(Struct, frozen=True, kw_only=True):
    """One conversation of an episode. `tools` is a JSON array as text; `reward` is None where the episode failed.

    `conversation` counts those of the rollout, from 0. `data` are all rows of training data of the rollout,
    only in its first conversation, if ids are wanted. Held-out episodes train nothing: their mask is 0.
    """

    messages: tuple[ChatMessage, ...]
    tools: str
    environment: str
    split: str
    task: str
    rollout_id: str
    conversation: int
    evaluation: bool
    step: int | None
    time: float
    reward: float | None
    success: bool
    stop_reason: str
    error: str
    seconds: float
    data: tuple[DatumRow, ...] = ()


def rows_of(entry: Entry, *, ids: bool) -> Iterator[ChatRow]:
    """Yield the conversations of an episode, the first with its training data if `ids` are wanted."""
    trajectory = entry.trajectory
    task = trajectory.job.task
    for number, path in enumerate(_paths(trajectory)):
        yield ChatRow(
            messages=tuple(_messages(trajectory, path)),
            tools=_json(for_chat_template(trajectory.tools)),
            environment=task.env_name,
            split=task.split,
            task=task.key,
            rollout_id=clean(entry.key),
            conversation=number,
            evaluation=trajectory.job.evaluation,
            step=entry.step,
            time=entry.time,
            reward=None if trajectory.error else entry.reward,
            success=entry.success,
            stop_reason=trajectory.ending,
            error=clean(trajectory.error),
            seconds=trajectory.seconds,
            data=tuple(_data(entry)) if ids and not number else (),
        )


def _paths(trajectory: Trajectory) -> list[list[int]]:
    """Return the indexes of the turns of each conversation, in the order of their last turns."""
    parents = trajectory.parents
    paths: list[list[int]] = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return paths or [[]]


def _messages(trajectory: Trajectory, path: Sequence[int]) -> Iterator[ChatMessage]:
    """Yield what was said on one path. Calls are numbered; results take the numbers in the same order."""
    repeated = {turn for turn, following in pairwise(path) if trajectory.turns[following].messages}
    count = 0
    open_calls: list[str | None] = []
    for one in conversation(trajectory, path):
        message = one.message
        if one.turn in repeated and (one.result or one.nudge):
            continue  # the agent said itself what came back
        if one.result or message.role == "tool":
            number = open_calls.pop(0) if open_calls else None
            name = clean(one.result.name if one.result else message.name)
            yield ChatMessage(role="tool", content=_text(message.content), name=name, tool_call_id=number)
            continue
        open_calls = []
        for call in one.action.calls if one.action else message.calls:
            open_calls.append(f"call_{count}" if isinstance(call, ToolCall) else None)
            count += isinstance(call, ToolCall)
        yield ChatMessage(
            role=message.role,
            content=_text(message.content),
            reasoning_content=clean(message.reasoning) or None,
            tool_calls=tuple(map(_call, message.calls, filter(None, open_calls))),
        )


def _call(call: ToolCall, number: str) -> Call:
    return Call(id=number, function=Function(name=clean(call.name), arguments=_json(call.arguments)))


def _text(content: Sequence[Block]) -> str:
    """Return the text of a message. An image becomes its type: the formats here hold text."""
    return clean(
        "\n".join(f"[image {block.mime_type}]" if isinstance(block, ImageBlock) else block.text for block in content)
    )


def _json(tree: object) -> str:
    return msgspec.json.encode(map_strings(tree, clean)).decode()


def _data(entry: Entry) -> Iterator[DatumRow]:
    for datum in to_data(entry.trajectory, reward=entry.reward):
        evaluation = entry.trajectory.job.evaluation
        yield DatumRow(
            prompt_ids=datum.prompt,
            response_ids=datum.response,
            loss_mask=(0,) * len(datum.loss_mask) if evaluation else datum.loss_mask,
            sampled=datum.sampled,
            logprobs=datum.logprobs,
        )
