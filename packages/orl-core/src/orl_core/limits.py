"""Limits of a rollout with their defaults, and which of its tokens may train.

The section `rollout` of the configuration takes these, and adds those of a whole rollout.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
CONTEXT_TOKENS = 32768  # of prompt and response together, if nothing else limits them


class TrainOn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the sampled tokens that train. The others stay in the data, with a loss mask of 0."""

    text: Annotated[bool, Meta(description="Train the text outside calls and reasoning.")] = True
    calls: Annotated[bool, Meta(description="Train tool calls.")] = True
    reasoning: Annotated[
        bool,
        Meta(
            description="Train reasoning. A file with `thinking: true` and no key beyond the cookbook's sets it "
            "to false."
        ),
    ] = True
    failed_turns: Annotated[bool, Meta(description="Train turns in which every call was refused.")] = True

    def __post_init__(self) -> None:
        if not (self.text or self.calls or self.reasoning):
            raise ValueError("nothing would train: leave one of `text`, `calls`, `reasoning` on")


class Budgets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limit a rollout wherever it is played."""

    turn_tokens: Annotated[Positive, Meta(description="Most tokens that the model generates in one turn.")] = 4096
    tool_result_tokens: Annotated[
        Positive, Meta(description="Tokens of one tool result; a longer one is cut at its end.")
    ] = 4096
    call_timeout: Annotated[Seconds, Meta(description="Deadline of one call of the environment, in seconds.")] = 60.0
    turn_timeout: Annotated[Seconds, Meta(description="Deadline of one turn, in seconds; at least `call_timeout`.")] = (
        300.0
    )
    rollout_timeout: Annotated[
        Seconds, Meta(description="Deadline of the whole rollout, in seconds; at least `turn_timeout`.")
    ] = 900.0
    max_nudges: Annotated[
        NonNegative | None,
        Meta(description="Answers without a call that get a reminder to call a tool; null: all, until `max_turns`."),
    ] = None
    max_invalid: Annotated[
        Positive | None,
        Meta(
            description="Turns in a row, all calls refused or cut, that end the rollout; null: none before `max_turns`."
        ),
    ] = None
    retry_cut_actions: Annotated[
        bool,
        Meta(description="Tell the model that its action was cut at `turn_tokens`, and continue; false: end there."),
    ] = True
    train_timeouts: Annotated[bool, Meta(description="Train rollouts that ran out of time, up to there.")] = False
    train_on: Annotated[TrainOn, Meta(description="The sampled tokens that train.")] = field(default_factory=TrainOn)


class Limits(Budgets, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limit one rollout: the budgets, and the limits that depend on its environment or the whole configuration.

    `strip_reasoning` keeps the reasoning of earlier turns from the engine.
    """

    max_turns: int = 20
    context_tokens: int = CONTEXT_TOKENS
    rollout_tokens: int = CONTEXT_TOKENS
    parallel_calls: bool = False
    strip_reasoning: bool = False
