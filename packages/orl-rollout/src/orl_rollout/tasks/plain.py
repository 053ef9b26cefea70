"""Plain rows: a prompt, or the messages of a chat, that the model answers once. No environment is asked.

A row `{"prompt": ..., "label": ..., "metadata": ...}` becomes a Task, whose `task_spec` holds these three. Only the
user's own reward function can score it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct
from orl_core import Message, SessionError, ToolCall, ToolResult, boundary, text_message
from orl_core.task import PLAIN, Task

from orl_rollout.loop.session import Opening


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
