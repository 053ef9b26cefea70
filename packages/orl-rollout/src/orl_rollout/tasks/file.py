"""Read tasks.jsonl, check each task against the configuration, and play plain rows. It opens no connection.

Held-out tasks are compared with those of training in one place, `overlap`, whichever trainer trains.
Files of `orl prepare` and of the OpenReward cookbook are read. The cookbook writes a row's metadata as a JSON text.

A plain row is a prompt, or the messages of a chat, that the model answers once. No environment is asked. A row
`{"prompt": ..., "label": ..., "metadata": ...}` becomes a Task, whose `task_spec` holds these three. Only the user's
own reward function can score it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct, structs
from orl_core import (
    ConfigError,
    Message,
    RunConfig,
    SessionError,
    Task,
    TaskRow,
    ToolCall,
    ToolResult,
    boundary,
    text_message,
)
from orl_core.task import PLAIN

from orl_rollout.edge.files import read_lines
from orl_rollout.loop.session import Opening

_ROW = msgspec.json.Decoder(TaskRow)


class _Text(Struct, frozen=True, kw_only=True, tag="text", forbid_unknown_fields=True):
    text: str


class _ChatMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message as chat files have it. Other keys, and images, are refused: they would not reach the model."""

    role: Literal["system", "user", "assistant"]
    content: str | list[_Text]


class PlainRow(Struct, frozen=True, kw_only=True):
    """One line of a file of plain rows. Other keys of the row do not count."""

    prompt: str | list[_ChatMessage]
    label: Any = None
    metadata: dict[str, Any] | str | None = None

    def __post_init__(self) -> None:
        if not self.prompt or (isinstance(self.prompt, list) and self.prompt[-1].role == "assistant"):
            raise ValueError("`prompt` is empty or ends with the assistant: end it with a user's message")


def plain_task(row: PlainRow) -> Task:
    """Return the task of a row. Equal rows are one task."""
    return Task(env_name=PLAIN, deployment_name=PLAIN, task_spec=msgspec.to_builtins(row))


class PlainSession:
    """The episode of a plain row: its messages, no tools, and one answer that ends it."""

    async def open(self, task: Task) -> Opening:
        """Return the messages of the row."""
        with boundary(SessionError, f"task {task.key} is no plain row"):
            prompt = msgspec.convert(task.task_spec, PlainRow).prompt
        chat = [_ChatMessage(role="user", content=prompt)] if isinstance(prompt, str) else prompt
        messages = tuple(map(_message, chat))
        return Opening(messages=messages, tools=(), accepts_text_answer=True, judges_any_answer=True)

    async def call(self, call: ToolCall) -> ToolResult:
        """Refuse: there is no tool."""
        raise SessionError(f"a plain row has no tool `{call.name}`")

    async def answer(self, text: str) -> ToolResult:
        """End the episode. The reward function reads the answer from the trajectory."""
        del text
        return ToolResult(name="", finished=True)

    async def close(self) -> None:
        """Release nothing."""


def _message(message: _ChatMessage) -> Message:
    content = message.content
    return text_message(message.role, content if isinstance(content, str) else "\n".join(part.text for part in content))


def read_tasks(path: str | Path, config: RunConfig) -> Iterator[Task]:
    """Yield the tasks of a file: those of environments of `config`, and those of plain rows.

    Raises:
        ConfigError: the file cannot be read, a row is no task of a configured environment, or a plain row has no
            reward function; names file and line.
    """
    try:
        for number, line in enumerate(read_lines(Path(path)), 1):
            try:
                task = _ROW.decode(line).metadata if b'"env_name"' in line else _other_task(line, config)
                config.environment(task.env_name)
            except RecursionError as exc:  # its text differs between versions of Python
                raise ConfigError(f"{path}:{number}: the row is nested too deep") from exc
            except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
                raise ConfigError(f"{path}:{number}: {exc}") from exc
            yield task
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc


def overlap(config: RunConfig, trained: Iterable[Task], held_out: Iterable[Task]) -> int:
    """Count the held-out tasks that are trained on, too.

    Raises:
        ConfigError: there are some, and `eval.allow_overlap` is false.
    """
    kept = {task.content: task.key for task in held_out}
    both = [kept[content] for content in dict.fromkeys(task.content for task in trained) if content in kept]
    if both and not config.eval.allow_overlap:
        counts = Counter(key.rpartition("/")[0] for key in both)
        where = ", ".join(f"{count} in {name}" for name, count in counts.items())
        raise ConfigError(
            f"{len(both)} of {len(kept)} held-out tasks are also trained on: {where}, such as {both[0]}. Name other "
            "`eval_splits`, or set `eval.allow_overlap: true`, also where tasks only look equal, because a session "
            "chooses what their specifications leave open"
        )
    return len(both)


def trained_tasks(lines: Iterable[bytes]) -> Iterator[Task]:
    """Yield the tasks of a trainer's data. Its other rows, such as plain ones, are for the trainer to judge."""
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError):
            yield task_in(metadata_in(msgspec.json.decode(line, type=dict[str, Any]).get("metadata")))


def _other_task(line: bytes, config: RunConfig) -> Task:
    """Return the task of a plain row, or of a row with metadata as JSON text."""
    row = msgspec.json.decode(line, type=PlainRow)
    metadata = metadata_in(row.metadata)
    if "env_name" in metadata:
        return task_in(metadata)
    task = plain_task(structs.replace(row, metadata=metadata) if isinstance(row.metadata, str) else row)
    if config.reward is None:
        raise ConfigError("it is a plain row, which only your own function scores: set `reward: module:function`")
    if config.reward_mode == "scale":
        raise ConfigError("it is a plain row, whose reward of 0 `reward_mode: scale` would keep: use replace or add")
    return task


def metadata_in(value: object) -> dict[str, Any]:
    """Return the metadata in `value`, an object or its JSON text; {} if it is empty.

    Raises:
        ConfigError: it is something else.
    """
    with suppress(msgspec.DecodeError, RecursionError):
        value = msgspec.json.decode(value) if value and isinstance(value, str) else value or {}
    if not isinstance(value, dict):
        raise ConfigError("its metadata is no object, and no JSON text of one. Write the file with orl prepare")
    return cast("dict[str, Any]", value)


def task_in(metadata: Mapping[str, Any]) -> Task:
    """Return the task in `metadata`, which may have other fields.

    Raises:
        ConfigError: they are no task's.
    """
    try:
        return msgspec.convert({name: metadata[name] for name in Task.__struct_fields__ if name in metadata}, Task)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"its metadata is no task of `orl prepare`: {exc}") from exc
