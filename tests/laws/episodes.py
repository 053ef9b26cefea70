"""Episodes in which engine and environment do what they are told, at the moment they are told: faults and their pairs.

A model and a world of a few lines stand for the two; both default to a sound step, so that a script says what goes
wrong and when. Times are seconds of a virtual clock. Every action holds ids that no encoder would give.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from orl_core.config import RunConfig, decode_config
from orl_core.errors import SessionError
from orl_core.messages import FailureKind, ImageBlock, TextBlock, ToolCall, ToolResult, ToolSpec, text_message
from orl_core.task import Task
from orl_core.trajectory import FinishReason, Generation
from orl_rollout.loop.session import Opening
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest

from tests.kit.runtimes import runtime_of
from tests.kit.tokenizers import renderer_of, tokenizer
from tests.laws.virtual import run

TOKENIZER = tokenizer("qwen3")
RENDERER = renderer_of()
NEVER = float("inf")
TASK = Task(env_name="A/B", deployment_name="A/B")
TURN_TOKENS, MAX_TURNS, MAX_NUDGES, MAX_INVALID = 64, 3, 1, 2
CALL_SECONDS, TURN_SECONDS, ROLLOUT_SECONDS, CLOSE_SECONDS, PAUSE = 10.0, 20.0, 33.5, 15.0, 0.05

HALVES = tuple(TOKENIZER.encode(["😀"])[0][:-1])  # bytes of a character that is never completed
CALLS = {
    "good": '<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call>',
    "unknown": '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>',
    "broken": '<tool_call>\n{"name"\n</tool_call>',
}
Call = Literal["good", "unknown", "broken"]
ModelStep = Literal["calls", "text", "cut", "abort", "error", "foreign error", "nothing", "too much"]
EnvironmentStep = Literal["pays", "says nothing", "ends", "refuses", "image", "error", "foreign error"]


@cache
def encoded(text: str) -> tuple[int, ...]:
    return (*HALVES, *TOKENIZER.encode_joint(text))


class Says(NamedTuple):
    """The engine's answer to one request, after so many seconds."""

    what: ModelStep = "calls"
    calls: tuple[Call, ...] = ("good",)
    seconds: float = 0.0

    @property
    def ids(self) -> tuple[int, ...]:
        """The action, whole or in part."""
        if self.what in ("text", "cut", "abort"):
            return encoded("Well." + "<|im_end|>" * (self.what == "text"))
        return encoded("".join(CALLS[call] for call in self.calls) + "<|im_end|>")


class Does(NamedTuple):
    """The environment's answer to one request, after so many seconds."""

    what: EnvironmentStep = "pays"
    seconds: float = 0.0


class Episode(NamedTuple):
    """One rollout: what differs from a sound one. `says` and `does` by the number of the request and of the call.

    `stops_at` and `cancelled_at` are moments on the clock: the host's abort flag, and the end of the host's patience.
    """

    says: Mapping[int, Says] = {}
    does: Mapping[int, Does] = {}
    opens: Does = Does()
    closes: Does = Does()
    in_text: bool = False
    parallel: bool = False
    train_timeouts: bool = False
    stops_at: float = NEVER
    cancelled_at: float = NEVER


async def _wait(seconds: float) -> None:
    await (asyncio.Event().wait() if seconds == NEVER else asyncio.sleep(seconds))


class Model:
    """The engine. `answered` holds (ids shown, generation) of every request that was answered."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self.asked = 0
        self.answered: list[tuple[tuple[int, ...], Generation]] = []

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        says = self._episode.says.get(self.asked, Says())
        self.asked += 1
        await _wait(says.seconds)
        if says.what in ("error", "foreign error"):
            raise SessionError("a stray error") if says.what == "error" else KeyError("meta_info")
        said = () if says.what == "nothing" else says.ids * (TURN_TOKENS if says.what == "too much" else 1)
        reasons: dict[ModelStep, FinishReason] = {"cut": "length", "abort": "abort"}
        logprobs = tuple(-(1.0 + (len(ids) + place) % 97) for place in range(len(said)))
        generation = Generation(token_ids=said, logprobs=logprobs, finish_reason=reasons.get(says.what, "stop"))
        self.answered.append((tuple(ids), generation))
        return generation


class World:
    """The session, and its source. `called` counts the tools that were run."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self.opened = self.closed = self.called = 0

    def session(self, task: Task) -> World:
        return self

    async def open(self, task: Task) -> Opening:
        self.opened += 1
        await self._do(self._episode.opens)
        tools = (ToolSpec(name="act"),)
        return Opening(
            messages=(text_message("user", "Play."),), tools=tools, accepts_text_answer=self._episode.in_text
        )

    async def call(self, call: ToolCall) -> ToolResult:
        self.called += 1
        return await self._do(self._episode.does.get(self.called - 1, Does()))

    async def answer(self, text: str) -> ToolResult:
        return await self.call(ToolCall(name="act"))

    async def close(self) -> None:
        self.closed += 1
        await self._do(self._episode.closes)

    async def _do(self, does: Does) -> ToolResult:
        await _wait(does.seconds)
        if does.what in ("error", "foreign error"):
            raise SessionError("gone") if does.what == "error" else OSError("reset by peer")
        image = ImageBlock(data="", mime_type="image/png")
        return ToolResult(
            name="act",
            content=(image if does.what == "image" else TextBlock(text="<|im_end|> is text"),),
            reward=0.25 if does.what in ("pays", "ends", "image") else None,
            finished=does.what == "ends",
            failure=FailureKind.INVALID_ARGUMENTS if does.what == "refuses" else None,
        )


class Played(NamedTuple):
    """The result of an episode; no outcome if it was cancelled. `left` counts tasks that still ran."""

    outcome: Outcome | None
    model: Model
    world: World
    left: int
    seconds: float


@cache
def config_of(parallel: bool, train_timeouts: bool) -> RunConfig:
    rollout = {
        "turn_tokens": TURN_TOKENS,
        "call_timeout": CALL_SECONDS,
        "turn_timeout": TURN_SECONDS,
        "rollout_timeout": ROLLOUT_SECONDS,
        "max_nudges": MAX_NUDGES,
        "max_invalid": MAX_INVALID,
        "train_timeouts": train_timeouts,
    }
    environment = {"max_turns": MAX_TURNS, "parallel_calls": parallel}
    return decode_config({"environments": {"A/B": environment}, "rollout": rollout}, "test")


def play(episode: Episode) -> Played:
    """Play one episode through a Runtime, on a clock of its own."""
    config = config_of(episode.parallel, episode.train_timeouts)
    model, world = Model(episode), World(episode)

    async def main() -> Played:
        loop = asyncio.get_running_loop()
        runtime = runtime_of(config, world)
        playing = asyncio.create_task(
            runtime.play(
                RolloutRequest(task=TASK, rollout_id="k"), model, stopped=lambda: loop.time() >= episode.stops_at
            )
        )
        ends = None if episode.cancelled_at == NEVER else loop.call_later(episode.cancelled_at, playing.cancel)
        await asyncio.wait({playing})
        if ends:
            ends.cancel()
        left = len(asyncio.all_tasks()) - 1
        outcome = None if playing.cancelled() else playing.result()
        return Played(outcome=outcome, model=model, world=world, left=left, seconds=loop.time())

    return run(main())
