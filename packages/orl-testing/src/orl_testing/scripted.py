"""A session and an engine that follow a script: what to answer, in order. An exception in a script is raised.

They record what they were asked, so that a test compares what was trained with what was sampled. They fake no protocol:
for SGLang and OpenReward on the wire there are stand-in servers next to this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from orl_core.messages import Message, ToolCall, ToolResult, ToolSpec, text_message
from orl_core.task import Task
from orl_core.trajectory import Generation
from orl_rollout.loop.session import Opening

Hang = float("inf")  # as a pause: never answers


class RecordedRequest(Struct, frozen=True, kw_only=True):
    """One request that the engine saw and the answer that it gave."""

    token_ids: tuple[int, ...]
    sampling: dict[str, Any]
    key: str
    generation: Generation


class ScriptedEngine:
    """Returns the scripted generations in order. `requests` holds all that it saw.

    A script's member is a Generation, an exception to raise, or a function from (ids, sampling) to a Generation.
    """

    def __init__(
        self,
        script: Iterable[Generation | Exception | Callable[[Sequence[int], Mapping[str, Any]], Generation]],
        *,
        pause: float = 0.0,
    ) -> None:
        self._script = iter(script)
        self._pause = pause
        self.requests: list[RecordedRequest] = []

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """The next generation of the script, whatever `ids` are."""
        await _wait(self._pause)
        step = next(self._script)
        if isinstance(step, Exception):
            raise step
        generation = step if isinstance(step, Generation) else step(ids, sampling)
        self.requests.append(
            RecordedRequest(token_ids=tuple(ids), sampling=dict(sampling), key=key, generation=generation)
        )
        return generation


class ScriptedSession:
    """Answers the calls of one episode in order. `opened`, `closed` and `calls` say what happened to it."""

    def __init__(
        self,
        script: Iterable[ToolResult | Exception] = (),
        *,
        messages: tuple[Message, ...] = (text_message("user", "Play."),),
        tools: tuple[ToolSpec, ...] = (ToolSpec(name="act"),),
        accepts_text_answer: bool = False,
        fails_to_open: Exception | None = None,
        pause: float = 0.0,
    ) -> None:
        self._script = iter(script)
        self._opening = Opening(messages=messages, tools=tools, accepts_text_answer=accepts_text_answer)
        self._fails_to_open = fails_to_open
        self._pause = pause
        self.opened = 0
        self.closed = 0
        self.calls: list[ToolCall] = []
        self.answers: list[str] = []

    async def open(self, task: Task) -> Opening:
        """The opening that was given, or the exception that was."""
        self.opened += 1
        if self._fails_to_open is not None:
            raise self._fails_to_open
        return self._opening

    async def call(self, call: ToolCall) -> ToolResult:
        """The next result of the script."""
        self.calls.append(call)
        return await self._next()

    async def answer(self, text: str) -> ToolResult:
        """The next result of the script."""
        self.answers.append(text)
        return await self._next()

    async def close(self) -> None:
        """Count."""
        self.closed += 1

    async def _next(self) -> ToolResult:
        await _wait(self._pause)
        step = next(self._script)
        if isinstance(step, Exception):
            raise step
        return step


async def _wait(seconds: float) -> None:
    if seconds == Hang:
        await asyncio.Event().wait()
    await asyncio.sleep(seconds)
