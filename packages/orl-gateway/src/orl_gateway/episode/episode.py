"""One episode of an agent that other people wrote: it owns the session, the tree of turns and the budgets.

The agent asks for actions (`ask`) and calls the environment's tools (`tools.call`), in any order and at once;
`trajectory` is what happened, whatever happened (law L2). A fault of the engine or the environment ends the episode
with ERROR, which never trains (law L3). The module knows no HTTP and no client's format.

A call that cannot be made is a mistake of the model (law L3). If other calls are sent, the model reads our own result
of it in the next turn. An action without any call that can be sent is a text for the agent, as servers of models give
it, and holds what the model wrote.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from msgspec import structs
from orl_core import (
    EngineError,
    Generation,
    OrlError,
    Renderer,
    RenderError,
    RolloutSpec,
    StopDetail,
    StopReason,
    Trajectory,
    Turn,
    boundary,
)
from orl_core.messages import Action, FailureKind, ParseFailure, ToolCall, ToolResult
from orl_rollout import Engine, Opening, Session
from orl_rollout.loop.action_sampler import ActionSampler
from orl_rollout.loop.clock import never, within
from orl_rollout.loop.fair_queue import take_turn
from orl_rollout.loop.loop import INLINE_CHARACTERS
from orl_rollout.loop.mistakes import refused
from orl_rollout.loop.token_buffer import TokenBuffer

from orl_gateway.dialects.exchange import History, ModelRequest, Reply, RequestRefused, SentCall
from orl_gateway.episode.state import EpisodeState
from orl_gateway.episode.tool_side import ToolSide
from orl_gateway.episode.tree import Place, Tree
from orl_gateway.episode.work import Work

REFUSAL_CHARACTERS = 500  # of a refusal, in an error
NOT_OBEYED = ("invalid_request", "unsupported")  # refusals that no budget and no ending caused


class Episode:
    """One episode of `job.task`. `async with` opens and closes the session; `opening` is what the environment says.

    `model` is the name that clients see. `stopped` is the trainer's abort flag, read before every request. `tools` is
    the environment's side. `work` are the requests and calls under way, `history` is what was read of them. Time
    is in seconds, budgets are in ids.

    Raises:
        SessionError: on entry: the environment cannot be reached or does not start.
    """

    def __init__(
        self,
        job: RolloutSpec,
        *,
        session: Session,
        renderer: Renderer,
        engine: Engine,
        model: str = "orl",
        stopped: Callable[[], bool] = never,
    ) -> None:
        self.job = job
        self.model = model
        self.opening = Opening(messages=(), tools=())
        self.tree = Tree(renderer, strips=job.limits.strip_reasoning)
        self.state = EpisodeState(job.limits, stopped)
        self.work = Work()
        self.history = History()
        self.tools = ToolSide(session, self.tree, job.limits, self.state, self.work)
        self._engine = engine
        self._requests = 0  # to the engine
        self._started = time.monotonic()
        self._name = secrets.token_hex(4)
        self._unmet = 0

    async def __aenter__(self) -> Self:
        try:
            self.opening = await self.tools.open(self.job.task)
        except BaseException:
            await self.tools.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.state.end(StopReason.ABORTED)  # unless it is over: a request whose body is still read asks nothing more
        try:
            await self.work.close()
        finally:
            await self.tools.close()

    async def ask(self, request: ModelRequest) -> Reply:
        """Sample the model's answer to `request`, and keep it as a turn.

        Raises:
            RequestRefused: the episode is over, a budget is used, the request cannot be shown to the model, or the
                engine failed; then the episode does not train.
        """
        try:
            async with self.state.turn():
                with boundary(OrlError, "a bug in orl"):
                    reply = await self._answer(request)
        except RequestRefused as refusal:
            self.state.refusal = refusal
            raise
        except OrlError as fault:
            raise self.state.fail(fault) from fault
        self.state.refusal = None  # the agent continues: its end has another reason
        return reply

    async def count(self, request: ModelRequest) -> int:
        """Return how many ids the model would be shown for `request`."""
        async with self.state.time():
            place, observation = await self._observe(request)
            return self.tree.shown(place) + len(observation)

    @property
    def began(self) -> bool:
        """Return whether the agent has sent a request of the model."""
        return bool(self._requests) or self.state.refusal is not None

    async def finish(self, fault: str = "", output: str = "") -> None:
        """End the episode because the agent ended: its last text is the answer, if the environment takes one.

        `fault` says how the agent failed, `output` what it printed last. An agent that got nothing done is an ERROR,
        also if the episode has ended.
        """
        if not self.state.over and self.state.stopped():
            self.state.end(StopReason.ABORTED)
        if self.state.ending is not StopReason.ABORTED and (why := self._undone(fault)):
            self.state.error = self.state.error or why + output
        if self.state.over:
            return
        action = self.tree.nodes[-1].turn.action
        if self.opening.takes(action):
            with suppress(RequestRefused):
                await self.tools.answer(action.text)
            self.state.end(StopReason.FINISHED)
        elif self.state.refusal is not None and self.state.refusal.code == "context_length_exceeded":
            self.state.end(StopReason.MAX_TOKENS)
        else:
            self.state.end(StopDetail.NO_CALL)

    def _undone(self, fault: str) -> str:
        """Return why the agent got nothing done: it failed, it got no answer, or it ended on a refused request."""
        refusal, ending = self.state.refusal, self.state.ending
        code = refusal.code if refusal else ""
        if fault and ending is None and code != "context_length_exceeded":
            why = f"the agent failed: {fault}"
        elif not any(node.reply.name for node in self.tree.nodes):
            why = "no request of the agent was answered"
            if not self.began:
                return "the agent sent no request to the model: send one to the address in its variables"
        elif code in NOT_OBEYED and ending in (None, StopReason.TIMEOUT):
            why = "the agent ended on a refusal"
        else:
            return ""
        return f"{why}; its last request was refused: {str(refusal)[:REFUSAL_CHARACTERS]}" if refusal else why

    def trajectory(self) -> Trajectory:
        """Return what happened. An episode that was not ended is ABORTED."""
        self.tools.settle()
        nodes, error, ending = self.tree.nodes, self.state.error, self.state.ending or StopReason.ABORTED
        detail = ending if isinstance(ending, StopDetail) and not error else None
        reason = ending.reason if isinstance(ending, StopDetail) else ending
        counts = {"dropped_text": len(self.tree.dropped), "forced_calls_unmet": self._unmet}
        return Trajectory(
            job=self.job,
            messages=nodes[0].opening if nodes else self.opening.messages,
            tools=nodes[0].tools if nodes else self.opening.tools,
            turns=tuple(node.turn for node in nodes),
            stop_reason=StopReason.ERROR if error else reason,
            stop_detail=detail,
            error=error,
            seconds=time.monotonic() - self._started,
            counts={name: count for name, count in counts.items() if count},
        )

    async def _answer(self, request: ModelRequest) -> Reply:
        if request.max_tokens is not None and request.max_tokens < 1:
            raise RequestRefused(f"the request allows {request.max_tokens} tokens: allow at least 1")
        place, observation = await self._observe(request)
        shown, limit = self.tree.shown(place) + len(observation), self.job.limits.context_tokens
        if shown >= limit:
            raise _too_long(shown, limit)
        most = min(self.job.turn_tokens, request.max_tokens or limit, limit - shown)
        async with self.state.tokens(most) as budget:
            context = self.tree.take_context(place)
            context.extend(observation)
            turn, whole = await self._sample(place, observation, context, budget)
        try:
            await take_turn()
            return self._commit(place, turn, context, cut=not whole)
        except BaseException:  # the episode ends, or the action cannot be parsed: what was sampled stays in a row
            self.tree.commit(place, turn, None, context)
            raise

    async def _observe(self, request: ModelRequest) -> tuple[Place, tuple[int, ...]]:
        """Return where the request continues and the ids of what is new, rendered on a thread if that is long."""
        place, limit = self.tree.place(request), self.job.limits.context_tokens
        try:
            characters = sum(len(message.text) for message in place.messages)
            if place.node is None or characters > INLINE_CHARACTERS:
                tools = () if place.node else place.request.tools
                if self.tree.renderer.too_long(place.messages, tools, limit):  # nothing is tokenized yet
                    raise _too_long(None, limit)
                return await asyncio.to_thread(self.tree.observe, place)
            await take_turn()
            return self.tree.observe(place)
        except RenderError as fault:
            raise RequestRefused(str(fault), code="unsupported") from fault

    async def _sample(
        self, place: Place, observation: tuple[int, ...], context: TokenBuffer, budget: int
    ) -> tuple[Turn, bool]:
        """Return the turn, not parsed yet, and whether its action is whole. Ids that a fault cut off are kept."""
        generations: list[Generation] = []
        end, limit = "aborted", time.monotonic() + self.job.limits.turn_timeout  # its requests share one deadline

        async def ends() -> bool:
            return self.state.stopped()

        sampler = ActionSampler(
            job=self.job,
            renderer=self.tree.renderer,
            engine=self._engine,
            deadline=lambda: within(max(0.0, limit - time.monotonic()), EngineError, "generating"),
            ends=ends,
        )
        try:
            end = await sampler.sample(context, budget, generations, self._next_request, place.request.stop)
            if end == "aborted":
                self.state.end(StopReason.ABORTED)
                self.state.check()
        finally:
            self.state.sampled += sum(len(each.token_ids) for each in generations)
            turn = Turn(observation=observation, generations=tuple(generations), action=Action())
            if end == "aborted" and turn.action_ids:
                self.tree.commit(place, turn, None, context)
        return turn, end == "whole"

    def _next_request(self) -> tuple[int]:
        self._requests += 1
        return (self._requests,)

    def _commit(self, place: Place, turn: Turn, context: TokenBuffer, *, cut: bool) -> Reply:
        """Parse the action, keep the turn and return the reply."""
        after, tools = place.messages[-1].role, place.request.tools
        with boundary(RenderError, "parsing an action"):
            action, spans = self.tree.renderer.read(turn.action_ids, tools, after=after)
        counted = Reply(
            name=f"{self._name}{len(self.tree.nodes):04d}",  # this turn becomes a node before another one can
            prompt_tokens=len(context) - len(turn.action_ids),
            cached_tokens=min(turn.generations[0].cached_tokens, len(context) - len(turn.action_ids)),
            sampled_tokens=len(turn.action_ids),
            reasoning_tokens=sum(span.end - span.start for span in spans if span.part == "reasoning"),
            created=int(time.time()),
        )
        most = self.tree.renderer.certificate.calls_per_action
        reply = reply_to(place.request, action, counted, cut=cut, most=most)
        results = () if reply.calls else tuple(result for _, result in reply.refused)  # nothing can be done of it
        turn = structs.replace(turn, action=action, spans=spans, results=results)
        self.tree.commit(place, turn, reply, context)
        self.history.sampled.update((sent.id, sent.call.id) for sent in reply.calls)
        self.history.replies[reply.name] = (
            structs.replace(place.request, messages=()),
            reply,
        )  # which may be named later
        self._unmet += not reply.meets(place.request.demand)
        return reply


def _too_long(shown: int | None, limit: int) -> RequestRefused:
    tokens = "far more" if shown is None else f"{shown} tokens"
    return RequestRefused(f"{tokens} > {limit - 1} maximum", code="context_length_exceeded")


def reply_to(request: ModelRequest, action: Action, counted: Reply, *, cut: bool, most: int | None) -> Reply:
    """Return the reply to `request`. `counted` is the reply with its name and counts alone.

    `cut` tells that a budget ended the action: nothing in it is done. `most` is how many results of one action the chat
    template can show; None is any number.
    """
    sent, failures = ([], []) if cut else _share_out(action, request, counted.name, most)
    text = action.text
    if not sent:
        text = "\n".join(part for part in (text, *map(_written, action.calls)) if part)
    stop = "" if cut else _first(request.stop, text)
    ending = "calls" if sent else "length" if cut else "stop_sequence" if stop else "stop"
    room = None if most is None else max(0, most - len(sent))
    return structs.replace(
        counted,
        text=text[: text.index(stop)] if stop else text,
        reasoning=action.reasoning,
        calls=tuple(sent),
        ending=ending,
        stop_sequence=stop,
        refused=tuple(failures[:room] if sent else failures),
    )


def _share_out(
    action: Action, request: ModelRequest, name: str, most: int | None
) -> tuple[list[SentCall], list[tuple[int, ToolResult]]]:
    """Return the calls that are sent, and the results of those that are not."""
    limits = [0 if not request.allows_calls else 1 if not request.allows_parallel else len(action.calls), most]
    limit = min(one for one in limits if one is not None)
    sent: list[SentCall] = []
    failures: list[tuple[int, ToolResult]] = []
    for position, call in enumerate(action.calls):
        if isinstance(call, ParseFailure):
            failures.append((position, refused(call)))
        elif request.allowed is not None and call.name not in request.allowed:
            why = f"`{call.name}` is not allowed in this turn, and was not called"
            failures.append((position, _unmade(call, FailureKind.UNKNOWN_TOOL, why)))
        elif len(sent) < limit:
            sent.append(SentCall(id=f"call_{name}_{len(sent)}", call=call))
        else:
            why = f"at most {limit} calls are made in this turn, and this one was not made"
            failures.append((position, _unmade(call, FailureKind.TOO_MANY_CALLS, why)))
    return sent, failures


def _written(call: ToolCall | ParseFailure) -> str:
    """Return a call as text: what the model wrote, or its JSON."""
    if isinstance(call, ParseFailure):
        return call.text
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _unmade(call: ToolCall, kind: FailureKind, why: str) -> ToolResult:
    return refused(ParseFailure(kind=kind, name=call.name, message=why))


def _first(stops: Sequence[str], text: str) -> str:
    """Return the stop sequence that `text` holds first; empty if it holds none."""
    matches = [(text.index(stop), stop) for stop in stops if stop and stop in text]
    return min(matches)[1] if matches else ""
