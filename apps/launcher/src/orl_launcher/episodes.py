"""Episodes that a warm start imitates: of a program, of a journal, and of conversations in the chat format.

A program plays in orl's own loop, in the model's place: it gets the messages of the episode so far, and its answer
becomes token ids by `Renderer.write`. `to_data` alone makes rows of episodes. No trainer is known here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field, structs
from orl_core import (
    Action,
    ConfigError,
    EngineError,
    Generation,
    Limits,
    Message,
    Renderer,
    Role,
    RolloutSpec,
    StopReason,
    TextBlock,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
    boundary,
    to_data,
)
from orl_core.task import PLAIN, Task
from orl_rollout import Engine, Outcome, Session, rollout
from orl_rollout.edge.files import read_lines
from orl_rollout.episodes.journal import journal_files, read_journal
from orl_rollout.functions import loading
from orl_rollout.loop.clock import Pause, give_up, never
from orl_rollout.run_folder.contract import TOKENIZER
from orl_rollout.tokenizer.tokenizer import HFTokenizer

T = TypeVar("T")
Function = Callable[[Sequence[Message], Sequence[ToolSpec]], object]


def load_function(name: str) -> Function:
    """Load the function `module:function`, which takes only the messages."""
    if not all(name.partition(":")):
        raise ConfigError(f"--player {name}: name a function as module:function")
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


def journalled(folder: Path, tokenizer: HFTokenizer) -> Iterator[Outcome]:
    """Yield the episodes of the journal in `folder` that may train. Evaluations may not: their tasks are held out."""
    if not journal_files(folder) or not folder.is_dir():
        raise ConfigError(f"--journal {folder}: no journal in this folder. Name the folder of a run")
    if not (folder / TOKENIZER).is_file() or _ids(tokenizer.file()) != _ids((folder / TOKENIZER).read_bytes()):
        raise ConfigError(
            f"--journal {folder}: its token ids are those of another tokenizer than --model has. Name the model of "
            "that run, or one that began with it"
        )
    for entry in read_journal(folder):
        trajectory = entry.trajectory
        if trajectory.trainable and not trajectory.job.evaluation:
            yield entry.outcome


def _ids(tokenizer: bytes) -> dict[str, int]:
    """Return every id of a tokenizer.json by its text."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(tokenizer.decode()).get_vocab(with_added_tokens=True)


class _Function(Struct):
    name: str
    arguments: str | dict[str, Any] = field(default_factory=dict[str, Any])


class _Call(Struct):
    function: _Function


class _ChatMessage(Struct):
    role: Role
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    name: str | None = None


class _Tool(Struct):
    function: ToolSpec


class Chat(Struct):
    """A conversation in the chat format. `tools` may be JSON text, as `orl export` writes them."""

    messages: list[_ChatMessage]
    tools: list[_Tool] | str = field(default_factory=list[_Tool])


def conversations(path: Path, renderer: Renderer, limits: Limits) -> Iterator[Outcome]:
    """Yield the conversations of a file with one JSON object in a line."""
    with boundary(ConfigError, f"--rows {path}"):
        for number, line in enumerate(read_lines(path), 1):
            with boundary(ConfigError, f"line {number}"):
                task = Task(env_name=PLAIN, deployment_name=PLAIN, task_spec={"row": number})
                job = RolloutSpec(task=task, rollout_id=str(number), limits=limits)
                yield episode_of(msgspec.json.decode(line, type=Chat), renderer, job)


def episode_of(chat: Chat, renderer: Renderer, job: RolloutSpec) -> Outcome:
    """Return a conversation as an episode in which each of the assistant's messages is an action."""
    messages = [*map(_message, chat.messages)]
    tools = tuple(tool.function for tool in _decoded(chat.tools, list[_Tool]))
    parts = [[*group] for _, group in groupby(messages, key=lambda one: one.role == "assistant")]
    actions = parts[1::2]
    if not actions or messages[0].role == "assistant" or any(len(message) > 1 for message in actions):
        raise ValueError("each message of the assistant must follow one of another role, and there must be one")
    turns: list[Turn] = []
    results = 0
    for others, (message,) in zip(parts[::2], actions, strict=False):
        if turns:
            named = _named(others, turns[-1].action)
            observation = renderer.extend(turns[-1].action_ids, named, calls_before=results)
        else:
            observation = renderer.open(others, tools)
        results += sum(one.role == "tool" for one in others)
        after, written = others[-1].role, Action(text=message.text, reasoning=message.reasoning, calls=message.calls)
        ids = renderer.write(written, tools, after=after)
        action, spans = renderer.read(ids, tools, after=after)
        hidden = renderer.hide(observation, ids, spans, after=after) if job.limits.strip_reasoning else ()
        generations = (scripted(ids),)
        turns.append(
            Turn(observation=observation, generations=generations, action=action, spans=spans, stripped_spans=hidden)
        )
    trajectory = Trajectory(
        job=job, messages=tuple(parts[0]), tools=tools, turns=tuple(turns), stop_reason=StopReason.FINISHED
    )
    return Outcome(trajectory=trajectory, reward=0.0, success=False, datums=to_data(trajectory, reward=0.0))


def _named(messages: Sequence[Message], action: Action) -> list[Message]:
    """Return results with the ids of the calls that they answer, and the names where the chat format has none."""
    calls = iter(action.calls)
    named: list[Message] = []
    for message in messages:
        call = next(calls, None) if message.role == "tool" else None
        named.append(structs.replace(message, name=message.name or call.name, id=call.id) if call else message)
    return named


def _message(chat: _ChatMessage) -> Message:
    """Return a message of the chat format as ours."""
    blocks = [{"type": "text", "text": chat.content}] if isinstance(chat.content, str) else chat.content or []
    if any(block.get("type") != "text" for block in blocks):
        raise ValueError("a message holds something else than text")
    calls = [call.function for call in chat.tool_calls or ()]
    return Message(
        role=chat.role,
        content=tuple(TextBlock(text=str(block["text"])) for block in blocks if block["text"]),
        reasoning=chat.reasoning_content or "",
        calls=tuple(ToolCall(name=call.name, arguments=_decoded(call.arguments, dict[str, Any])) for call in calls),
        name=chat.name or "",
    )


def _decoded(value: str | T, kind: type[T]) -> T:
    return msgspec.json.decode(value, type=kind) if isinstance(value, str) else value
