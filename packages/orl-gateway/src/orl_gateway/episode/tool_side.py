"""The environment's side of an episode: the calls of its tools, and the results, kept with the turns that made them.

Whatever brings the agent's calls (MCP, HTTP) uses it: the checks, deadlines and order are those of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import nullcontext, suppress
from functools import partial

from msgspec import structs
from orl_core import (
    Limits,
    ParseFailure,
    SessionError,
    StopReason,
    Task,
    TextBlock,
    ToolCall,
    ToolResult,
    boundary,
    text_of,
)
from orl_rollout.loop.clock import within
from orl_rollout.loop.fair_queue import take_turn
from orl_rollout.loop.loop import CLOSE_SECONDS, INLINE_CHARACTERS
from orl_rollout.loop.mistakes import keep_unusable, refused
from orl_rollout.loop.session import Opening, Session
from orl_rollout.loop.tool_check import Toolbox

from orl_gateway.episode.state import EpisodeState
from orl_gateway.episode.tree import Node, Tree, canonical
from orl_gateway.episode.work import Work


class ToolSide:
    """The session of one episode."""

    def __init__(self, session: Session, tree: Tree, limits: Limits, state: EpisodeState, work: Work) -> None:
        self._session = session
        self._tree = tree
        self._limits = limits
        self._state = state
        self._work = work
        self._one_by_one = nullcontext() if limits.parallel_calls else asyncio.Lock()
        self._early: list[ToolResult] = []  # of calls before the first turn

    async def open(self, task: Task) -> Opening:
        """Open the session."""
        with boundary(SessionError, "opening a session"):
            opening = await self._session.open(task)
            self._tools = Toolbox(opening.tools)
        return opening

    async def close(self) -> None:
        """Close the session in bounded time; its complaints change nothing."""
        with suppress(SessionError):
            async with within(CLOSE_SECONDS, SessionError, "closing the session"):
                await self._session.close()

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the result of a call as the agent reads it: its text is cut to `tool_result_tokens`.

        The whole result is kept with the turn that made the call. One with an image is not cut. What the tool's schema
        refuses is answered without the environment. A call continues if the agent has stopped waiting for it: its
        result and reward are kept.
        """
        result = await asyncio.shield(self._work.start(partial(self._call, call)))
        if not all(isinstance(block, TextBlock) for block in result.content):
            return result
        text, budget = text_of(result.content), self._limits.tool_result_tokens
        if len(text) <= INLINE_CHARACTERS:
            await take_turn()
            shown = self._tree.renderer.cut(text, budget)
        else:
            shown = await asyncio.to_thread(self._tree.renderer.cut, text, budget)
        return structs.replace(result, content=(TextBlock(text=shown),))

    async def _call(self, call: ToolCall) -> ToolResult:
        async with self._state.time():
            (checked,) = await self._tools.check_all([call], None)
            if isinstance(checked, ParseFailure):
                return self._keep(call, refused(checked))
            async with self._one_by_one:
                self._state.check()
                return await self._ask(call, f"calling tool `{call.name}`", self._session.call(checked))

    async def answer(self, text: str) -> None:
        """Give the environment the agent's last text, if it takes one as the answer."""
        async with self._state.time():
            await self._ask(ToolCall(name="answer"), "answering", self._session.answer(text))

    def settle(self) -> None:
        """Give results from before the first turn to that, once there is one."""
        if self._early and self._tree.nodes:
            first = self._tree.nodes[0]
            first.turn = structs.replace(first.turn, results=(*self._early, *first.turn.results))
            self._early = []

    async def _ask(self, call: ToolCall, what: str, answer: Awaitable[ToolResult]) -> ToolResult:
        """Await the environment's answer under the deadline of one call; past it the episode is lost, not repeated."""
        started = time.monotonic()
        unusable: list[ToolResult] = []
        try:
            with keep_unusable(unusable, call.name):
                async with within(self._limits.call_timeout, SessionError, what):
                    result = await answer
        except SessionError as fault:
            for one in unusable:
                self._keep(call, one)
            raise self._state.fail(fault) from fault
        result = self._keep(call, structs.replace(result, seconds=time.monotonic() - started))
        if result.finished:
            self._state.end(StopReason.FINISHED)
        return result

    def _keep(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Keep a result with its turn; see `settle` for one from before the first turn."""
        nodes = self._tree.nodes
        if not nodes:
            self._early.append(result)
            return result
        node = next((node for node in reversed(nodes) if self._made(node, call)), nodes[-1])
        node.turn = structs.replace(node.turn, results=(*node.turn.results, result))
        return result

    def _made(self, node: Node, call: ToolCall) -> bool:
        """Return whether the turn made this call and has results for fewer than it made. Agents may prefix names."""
        calls = [sent.call for sent in node.reply.calls]
        same = (one for one in calls if canonical(one.arguments) == canonical(call.arguments))
        return len(node.turn.results) < len(calls) and any(one.name.endswith(call.name) for one in same)
