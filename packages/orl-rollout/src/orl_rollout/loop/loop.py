"""The rollout loop: render, generate, parse, act, until a StopReason. The thirteen promises are kept here.

It knows the three protocols (Session, Renderer, Engine) and nothing behind them: no transport, no trainer, no file.
Whatever engine, environment and model do, `rollout` returns a Trajectory (law L2); it raises only on cancellation or on
a bug of ours, and closes the session exactly once on every path. The history is never rendered again: `context` grows
by appending what `Renderer.extend` and the engine return (laws L1, L5), without the last turn's reasoning if it is
stripped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import structs
from orl_core import (
    Action,
    EngineError,
    Generation,
    Message,
    ParseFailure,
    Renderer,
    RenderError,
    Role,
    RolloutSpec,
    SessionError,
    StopDetail,
    StopReason,
    TextBlock,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    boundary,
)

from orl_rollout.loop.action_sampler import ActionEnd, ActionSampler
from orl_rollout.loop.clock import Clock, Pause, give_up, never, within
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.fair_queue import take_turn
from orl_rollout.loop.mistakes import Ending, Mistakes, Step, failed, keep_unusable, refused
from orl_rollout.loop.session import Opening, Session
from orl_rollout.loop.token_buffer import TokenBuffer
from orl_rollout.loop.tool_check import Toolbox

CLOSE_SECONDS = 15.0  # what a session may take to close
INLINE_CHARACTERS = 2_000  # contents up to this size are encoded on the event loop, longer ones on a thread


async def rollout(
    job: RolloutSpec,
    *,
    session: Session,
    renderer: Renderer,
    engine: Engine,
    stopped: Callable[[], bool] = never,
    pause: Pause = give_up,
) -> Trajectory:
    """Play one episode of `job.task` and return what happened, whatever happened.

    `stopped` is the host's abort flag, read before every turn and every call; for `pause` see `Clock`. Time is in
    seconds, budgets are in ids.
    """
    clock = Clock(job.limits, stopped, pause)
    episode = _Episode(job, session=session, renderer=renderer, engine=engine, clock=clock)
    error = ""
    try:
        async with clock.running():
            ending = await episode.play()
    except TimeoutError:
        if not clock.whole.expired():
            raise
        ending = StopReason.TIMEOUT
        if not episode.turns:  # no turn completed
            limit = f"the {job.limits.rollout_timeout:g} s of `rollout_timeout`"
            ending, error = StopReason.ERROR, f"no turn was complete within {limit}"
    except (EngineError, SessionError, RenderError) as exc:
        ending, error = StopReason.ERROR, str(exc)
    except RecursionError as exc:  # of an answer that is nested as deep as Python can read, and no deeper
        ending, error = StopReason.ERROR, f"the environment's data is nested too deep: {exc}"
    finally:
        await _close(session)
    return Trajectory(
        job=job,
        messages=episode.opening.messages,
        tools=episode.opening.tools,
        turns=tuple(episode.turns),
        stop_reason=ending.reason if isinstance(ending, StopDetail) else ending,
        stop_detail=ending if isinstance(ending, StopDetail) else None,
        error=error,
        seconds=clock.seconds,
    )


_Render = Callable[..., tuple[int, ...] | None]


class _Episode:
    """The state of one rollout. `turns` is complete at any moment, so that whatever ends the play keeps them."""

    def __init__(self, job: RolloutSpec, *, session: Session, renderer: Renderer, engine: Engine, clock: Clock) -> None:
        self.job = job
        self.session = session
        self.renderer = renderer
        self.clock = clock
        self.sampler = ActionSampler(
            job=job,
            renderer=renderer,
            engine=engine,
            deadline=lambda: clock.within(job.limits.turn_timeout, EngineError, "generating"),
            ends=clock.ends,
        )
        self.opening = Opening(messages=(), tools=())
        self.tools = Toolbox(())
        self.turns: list[Turn] = []
        self.context = TokenBuffer()
        self.sampled = 0
        self.mistakes = Mistakes(job.limits, user_turns=renderer.certificate.user_turns)
        self.answered = 0  # results that were rendered, those of the opening too
        self.after: Role = "user"  # who spoke last before the action

    async def play(self) -> Ending:
        """Observe, generate and act, until the first reason to stop."""
        observation = await self._begin()
        if observation is None:
            return StopReason.MAX_TOKENS
        for number in range(1, self.job.limits.max_turns + 1):
            if await self.clock.ends():
                return StopReason.ABORTED
            if self._budget(len(observation)) < 1:
                return StopReason.MAX_TOKENS
            self.clock.begin_turn()
            end = await self._generate(observation)
            ending, messages = await self._act(end)
            if ending is not None:
                return ending
            if not self.renderer.can_follow(self.turns[-1].action_ids, messages):
                return StopDetail.ROLE_OPENED
            if number < self.job.limits.max_turns:
                observation = await self._observe(messages)
        return StopReason.MAX_TURNS

    async def _begin(self) -> tuple[int, ...] | None:
        """Open the session. Return the first observation; None if it is too long."""
        await take_turn()
        with boundary(SessionError, "opening a session"):
            self.opening = opening = await self.session.open(self.job.task)
            self.tools = Toolbox(opening.tools)
        long = self.tools.large or any(message.reasoning or message.calls for message in opening.messages)
        observation = await self._render(self._open, opening.messages, long=long)
        if observation is not None:
            self._heard(opening.messages)
        return observation

    def _open(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Return the ids of the opening; None if it is so long that tokenizing it would waste memory."""
        tools = self.opening.tools
        too_long = self.renderer.too_long(messages, tools, self.job.limits.context_tokens)
        return None if too_long else self.renderer.open(messages, tools)

    async def _generate(self, observation: Sequence[int]) -> ActionEnd:
        """Sample one action, store its turn, and return how the action ended.

        If the engine aborts without our request, the turn continues.
        """
        self.context.extend(observation)
        turn = Turn(observation=tuple(observation), generations=(), action=Action())
        self.turns.append(turn)
        generations: list[Generation] = []

        def request() -> tuple[int, int]:
            return len(self.turns), self.sampled + sum(len(each.token_ids) for each in generations)

        try:
            end = await self.sampler.sample(self.context, self._budget(0), generations, request)
        finally:
            self.turns[-1] = turn = structs.replace(turn, generations=tuple(generations))
            self.sampled += len(turn.action_ids)
        if end != "aborted":
            await take_turn()
            with boundary(RenderError, "parsing an action"):
                action, spans = self.renderer.read(turn.action_ids, self.opening.tools, after=self.after)
            self.turns[-1] = structs.replace(turn, action=action, spans=spans)
        return end

    async def _act(self, end: ActionEnd) -> Step:
        """Do what the action says; the reason to stop, or the messages that answer it.

        Nothing of a cut action is done. If the context or the rollout is full, no turn can follow. A cut at the budget
        of the turn is a mistake.
        """
        action, sampled = self.turns[-1].action, len(self.turns[-1].action_ids)
        results: list[ToolResult] = []
        if end == "cut":
            return self.mistakes.cut_action(sampled) if sampled >= self.job.turn_tokens else (StopReason.MAX_TOKENS, ())
        if end == "aborted" or await self.clock.ends():
            return StopReason.ABORTED, ()
        try:
            if action.calls:
                return await self._call_all(action.calls, results)
            if self.opening.takes(action):
                with keep_unusable(results, "answer"):
                    results.append(await self._ask("answering", self.session.answer(action.text)))
                return StopReason.FINISHED, ()
        finally:
            self.turns[-1] = structs.replace(self.turns[-1], results=tuple(results))
        return self.mistakes.no_call(self.tools.names, answers=self.opening.accepts_text_answer)

    async def _call_all(self, calls: Sequence[ToolCall | ParseFailure], results: list[ToolResult]) -> Step:
        """Answer every call in order, into `results`; the first `finished` ends the episode."""
        checked = await self.tools.check_all(calls, self.renderer.certificate.calls_per_action)
        if self.job.limits.parallel_calls:
            await self._call_side_by_side(checked, results)
        else:
            for call in checked:
                if results and await self.clock.ends():
                    return StopReason.ABORTED, ()
                with keep_unusable(results, call.name):
                    results.append(await self._call(call))
                if results[-1].finished:
                    break
        if any(result.finished for result in results):
            return StopReason.FINISHED, ()
        if self.mistakes.gives_up(refused=all(result.failure for result in results)):
            return StopDetail.INVALID_CALLS, ()
        return None, tuple(
            Message(role="tool", name=result.name, content=result.content, id=call.id)
            for call, result in zip(checked, results, strict=True)
        )

    async def _call_side_by_side(self, calls: Sequence[ToolCall | ParseFailure], results: list[ToolResult]) -> None:
        """Run the valid calls at once, a result for each. A fault counts unless a sibling ended the episode.

        A deadline or a cancellation leaves the results that were there by then.
        """
        faults: dict[int, SessionError] = {}
        results.extend(failed(call.name, SessionError("the call did not end")) for call in calls)

        async def attempt(place: int, call: ToolCall | ParseFailure) -> None:
            try:
                results[place] = await self._call(call)
            except SessionError as fault:
                faults[place] = fault
                results[place] = failed(call.name, fault)

        async with asyncio.TaskGroup() as group:
            for place, call in enumerate(calls):
                group.create_task(attempt(place, call))
        if faults and not any(result.finished for result in results):
            raise faults[min(faults)]

    async def _call(self, call: ToolCall | ParseFailure) -> ToolResult:
        if isinstance(call, ParseFailure):
            return refused(call)
        return await self._ask(f"calling tool `{call.name}`", self.session.call(call))

    async def _ask(self, what: str, answer: Awaitable[ToolResult]) -> ToolResult:
        """Await the environment's answer under the deadline of one call; past it the episode is lost, not repeated."""
        started = time.monotonic()
        async with self.clock.within(self.job.limits.call_timeout, SessionError, what):
            result = await answer
        return structs.replace(result, seconds=time.monotonic() - started)

    async def _observe(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the ids of the messages that answer the last action."""
        if self.job.limits.strip_reasoning:
            self._strip()
        nudge = messages[-1].text if messages[-1].role == "user" else ""
        self.turns[-1] = turn = structs.replace(self.turns[-1], nudge=nudge)
        before = self.answered
        self._heard(messages)

        def extend(messages: tuple[Message, ...]) -> tuple[int, ...]:
            return self.renderer.extend(turn.action_ids, [self._cut(each) for each in messages], calls_before=before)

        return await self._render(extend, messages)

    def _heard(self, messages: Sequence[Message]) -> None:
        """Note what the next action follows."""
        self.answered += sum(message.role == "tool" for message in messages)
        self.after = messages[-1].role

    def _strip(self) -> None:
        """Take the reasoning of the last turn out of what the engine will be shown."""
        turn = self.turns[-1]
        with boundary(RenderError, "stripping reasoning"):
            hidden = self.renderer.hide(turn.observation, turn.action_ids, turn.spans or (), after=self.after)
        begins = len(self.context) - len(turn.observation) - len(turn.action_ids)
        for start, end in reversed(hidden):
            self.context.cut(begins + start, begins + end)
        self.turns[-1] = structs.replace(turn, stripped_spans=hidden)

    def _cut(self, message: Message) -> Message:
        """Return a message with its text cut to the budget; one with an image is left to be refused."""
        texts = [block.text for block in message.content if isinstance(block, TextBlock)]
        if len(texts) < len(message.content):
            return message
        text = self.renderer.cut("\n".join(texts), self.job.limits.tool_result_tokens)
        return structs.replace(message, content=(TextBlock(text=text),))

    async def _render(self, render: _Render, messages: tuple[Message, ...], *, long: bool = False) -> Any:
        """Encode short messages on the loop, one rollout a round, and long ones on a thread."""
        size = sum(len(block.text) for message in messages for block in message.content if isinstance(block, TextBlock))
        with boundary(RenderError, "rendering"):
            if size <= INLINE_CHARACTERS and not long:
                await take_turn()
                return render(messages)
            return await asyncio.to_thread(render, messages)

    def _budget(self, observed: int) -> int:
        """Return how many ids the next action may have: the smallest of the three budgets, less the room needed."""
        limits, shown = self.job.limits, len(self.context) + observed
        return min(self.job.turn_tokens, limits.rollout_tokens - self.sampled, limits.context_tokens - shown)


async def _close(session: Session) -> None:
    """Close in bounded time. What a close has to complain about changes nothing of what was played."""
    with suppress(SessionError):
        async with within(CLOSE_SECONDS, SessionError, "closing the session"):
            await session.close()
