"""The record of a rollout, never edited: generations, turns, the trajectory, and why it stopped.

Its ids are the engine's own (law L1). A turn stores only what it adds, and which of its ids later turns were not shown.
Turns form a list, or a tree where an agent branches off: each names the turn that it continues.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field

from orl_core.errors import EngineAnswerError
from orl_core.limits import Limits
from orl_core.messages import Action, Message, Span, ToolResult, ToolSpec
from orl_core.task import Task

# Trainers hold logprobs as float32: what is lower would become minus infinity. A probability of 1, rounded up by one
# unit of bfloat16, has the logprob 0.0078: what is higher is no rounding.
LOWEST_LOGPROB = -3.4e38
HIGHEST_LOGPROB = 0.01

FinishReason = Literal["stop", "length", "abort"]
ROOT = -1  # in `Turn.continues`: the turn begins a conversation of its own


class StopReason(StrEnum):
    """Why a trajectory ended. TIMEOUT (unless asked for), ABORTED and ERROR never train."""

    FINISHED = "finished"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    ERROR = "error"


class StopDetail(StrEnum):
    """The model's own ways to end a trajectory before a budget did. Each belongs to one StopReason."""

    NO_CALL = "no_call"  # an answer without a call, with no reminder left
    INVALID_CALLS = "invalid_calls"  # `max_invalid` turns in a row whose calls were all refused
    ROLE_OPENED = "role_opened"  # the action opened a role that what follows does not have
    CUT_ACTION = "cut_action"  # the action was cut at `turn_tokens`

    @property
    def reason(self) -> StopReason:
        """Return the StopReason that it belongs to."""
        return StopReason.MAX_TOKENS if self is StopDetail.CUT_ACTION else StopReason.MAX_TURNS


class RolloutSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout to produce. `rollout_id` routes it to one engine; `sampling` is what the trainer passed."""

    task: Task
    rollout_id: str = field(name="key")
    limits: Limits = field(default_factory=Limits)
    sampling: dict[str, Any] = field(default_factory=dict[str, Any])
    evaluation: bool = False

    @property
    def turn_tokens(self) -> int:
        """Return the most ids that one turn may sample: the trainer's request, else the limit."""
        return self.sampling.get("max_new_tokens") or self.limits.turn_tokens


class Generation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer of the engine. `token_ids` and `logprobs` have the same length N; logprobs are natural logs, finite.

    `cached_tokens` counts prompt tokens served from the prefix cache; `extras` is opaque meta_info that a trainer
    replays and is never journalled.

    Raises:
        EngineAnswerError: the logprobs are missing, short, not finite or of no probability, or an id is not one.
    """

    token_ids: tuple[int, ...] = field(name="ids")
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: str = ""
    cached_tokens: int = 0
    seconds: float = 0.0
    extras: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise EngineAnswerError(f"the engine returned {len(self.token_ids)} ids and {len(self.logprobs)} logprobs")
        if not {int}.issuperset(map(type, self.token_ids)) or (
            self.token_ids and not 0 <= min(self.token_ids) <= max(self.token_ids) < 1 << 31
        ):
            raise EngineAnswerError("the engine returned an id that is not a whole number of 31 bits")
        if not {float, int}.issuperset(map(type, self.logprobs)):
            raise EngineAnswerError("the engine returned a logprob that is not a number")
        if not all(map(math.isfinite, self.logprobs)):
            raise EngineAnswerError("the engine returned a logprob that is not finite")
        low, high = min(self.logprobs, default=0.0), max(self.logprobs, default=0.0)
        if low < LOWEST_LOGPROB or high > HIGHEST_LOGPROB:
            wrong = low if low < LOWEST_LOGPROB else high
            raise EngineAnswerError(f"the engine returned the logprob {wrong:g}, which no probability has")


class Turn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn: what the engine was shown since its last answer, what it answered, and what that caused.

    `generations` has more than one member only where an aborted action was continued. `spans` says which ids of the
    action are reasoning and calls; None if that is not known. `stripped_spans` are ranges of the observation
    followed by the action that later turns were not shown: stripped reasoning. `nudge` is the loop's own message that
    the model was shown next, if there was one. `continues` is the index in the trajectory of the turn that this one
    was shown after, with all that that one was shown; None is the turn before, ROOT none at all.
    `messages` are what was observed, where an agent said it and not the loop.
    """

    observation: tuple[int, ...]
    generations: tuple[Generation, ...]
    action: Action
    spans: tuple[Span, ...] | None = None
    stripped_spans: tuple[tuple[int, int], ...] = field(default=(), name="hidden")
    results: tuple[ToolResult, ...] = ()
    nudge: str = ""
    continues: int | None = None
    messages: tuple[Message, ...] = ()

    @property
    def action_ids(self) -> tuple[int, ...]:
        """Return the ids that the engine returned in this turn, verbatim."""
        if len(self.generations) == 1:
            return self.generations[0].token_ids
        return tuple(token for generation in self.generations for token in generation.token_ids)

    @property
    def visible_ids(self) -> tuple[int, ...]:
        """Return the ids of this turn that later turns were shown: observation and action without what is hidden."""
        ids = (*self.observation, *self.action_ids)
        starts = [0, *(end for _, end in self.stripped_spans)]
        ends = [*(start for start, _ in self.stripped_spans), len(ids)]
        return tuple(token for start, end in zip(starts, ends, strict=True) for token in ids[start:end])

    @property
    def failed(self) -> bool:
        """Return whether the turn made calls and all of them were refused."""
        return bool(self.results) and all(result.failure for result in self.results)

    @property
    def reward(self) -> float | None:
        """Return the sum of the finite rewards of this turn; None if there was no reward."""
        paid = [result.reward for result in self.results if result.reward is not None and math.isfinite(result.reward)]
        return sum(paid) if paid else None


class Trajectory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of one rollout. `error` is the fault's one-line text where `stop_reason` is ERROR, or says
    that an ABORTED one was not judged; else it is empty.

    `stop_detail` is None where a budget, the environment, the host or a fault ended it.
    `messages` is how the episode began, as the environment said it, and `tools` are those that the model was told of;
    it saw both as `turns[0].observation`.
    `counts` are what an agent's API forgave or could not promise, by name: `dropped_text`, `forced_calls_unmet`.
    `contains_secret` says that its text echoes a secret: it is journalled scrubbed, not uploaded, and does not train.
    """

    job: RolloutSpec
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    turns: tuple[Turn, ...] = ()
    stop_reason: StopReason
    stop_detail: StopDetail | None = None
    error: str = ""
    contains_secret: bool = field(default=False, name="leaked")
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        for index, turn in enumerate(self.turns):
            if turn.continues is not None and not ROOT <= turn.continues < index:
                raise ValueError(f"turn {index} continues turn {turn.continues}, which is not one before it")

    @property
    def parents(self) -> tuple[int, ...]:
        """Return for each turn the index of the turn that it continues; ROOT if it begins a conversation."""
        return tuple(index - 1 if turn.continues is None else turn.continues for index, turn in enumerate(self.turns))

    @property
    def trainable(self) -> bool:
        """Return whether the trainer may learn from it."""
        ended = self.stop_reason in (StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.MAX_TOKENS) or (
            self.stop_reason is StopReason.TIMEOUT and self.job.limits.train_timeouts
        )
        return (
            ended
            and not self.contains_secret
            and any(generation.token_ids for turn in self.turns for generation in turn.generations)
        )

    @property
    def ending(self) -> str:
        """Return the name of its ending: the detail's, or else the reason's."""
        return (self.stop_detail or self.stop_reason).value

    @property
    def rewards(self) -> tuple[float, ...]:
        """Return everything that the environment paid, in order, calls that paid nothing left out."""
        return tuple(result.reward for turn in self.turns for result in turn.results if result.reward is not None)
