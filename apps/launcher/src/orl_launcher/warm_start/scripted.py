"""A function of the user's plays the tasks: orl's own loop, in which the function answers in the model's place.

The function gets the messages of the episode so far. Its answer becomes token ids by `Renderer.write`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from orl_core.errors import EngineError, boundary
from orl_core.messages import Action, Message, TextBlock, ToolCall, ToolSpec
from orl_core.trajectory import Generation, RolloutSpec, Trajectory
from orl_rollout.functions import loading
from orl_rollout.loop.clock import Pause, give_up, never
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_rollout.loop.session import Session

if TYPE_CHECKING:
    from orl_core.render import Renderer

Function = Callable[[Sequence[Message], Sequence[ToolSpec]], object]


def load_function(name: str) -> Function:
    """Load the function `module:function`, which takes the messages alone."""
    with loading("--player", name) as function:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"{type(function).__name__} is no plain function of messages")
        inspect.signature(function).bind(())
    return lambda messages, _: function(messages)


def action_of(answer: object) -> Action:
    """Return an answer as an action: an Action, a text, a call (name, arguments), or a list of calls."""
    if isinstance(answer, Action):
        return answer
    if isinstance(answer, str):
        return Action(text=answer)
    answers = cast("list[object]", answer if isinstance(answer, list) else [answer])
    return Action(calls=tuple(map(_call, answers)))


def _call(answer: object) -> ToolCall:
    if isinstance(answer, ToolCall):
        return answer
    match answer:
        case (str(name), Mapping()):
            return ToolCall(name=name, arguments=msgspec.to_builtins(answer[1]))
        case _:
            raise TypeError(f"it returned {answer!r}. Return a call (name, arguments), a list of calls, or a text")


class ScriptedPlayer:
    """Play episodes as `rollout` does, with actions of the function that is called `name`."""

    def __init__(self, function: Function, name: str) -> None:
        self._function, self._name = function, name

    async def __call__(
        self,
        job: RolloutSpec,
        *,
        session: Session,
        renderer: Renderer,
        engine: Engine,
        stopped: Callable[[], bool] = never,
        pause: Pause = give_up,
    ) -> Trajectory:
        """Play one episode. `engine` is not asked."""
        script = _Script(renderer, self._act)
        return await rollout(
            job, session=session, renderer=cast("Renderer", script), engine=script, stopped=stopped, pause=pause
        )

    def _act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        with boundary(EngineError, f"--player {self._name}"):
            return action_of(self._function(messages, tools))


class _Script:
    """Renderer and engine of one episode: it listens to what the loop renders, and answers with what `act` says."""

    def __init__(self, renderer: Renderer, act: Callable[[Sequence[Message], Sequence[ToolSpec]], Action]) -> None:
        self._renderer, self._act = renderer, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        self._messages, self._tools = [*messages], tools
        return self._renderer.open(messages, tools)

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message], *, calls_before: int) -> tuple[int, ...]:
        self._messages += messages
        return self._renderer.extend(action_ids, messages, calls_before=calls_before)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        action = self._act(tuple(self._messages), self._tools)
        written = self._renderer.write(action, self._tools, after=self._messages[-1].role)
        if len(written) > (most := sampling["max_new_tokens"]):
            raise EngineError(f"an action has {len(written)} ids, and {most} are left: raise --max-response-len")
        calls = tuple(call for call in action.calls if isinstance(call, ToolCall))
        content = (TextBlock(text=action.text),) if action.text else ()
        self._messages.append(Message(role="assistant", content=content, reasoning=action.reasoning, calls=calls))
        return scripted(written)


def scripted(ids: tuple[int, ...]) -> Generation:
    """Return ids that no model sampled as a generation, with logprobs of 0."""
    return Generation(token_ids=ids, logprobs=(0.0,) * len(ids), finish_reason="stop")
