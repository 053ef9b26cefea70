"""Limits of a rollout, and which of its tokens may train."""

from __future__ import annotations

from msgspec import Struct, field


class TrainOn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of the sampled ids train: parts of an action, and turns all of whose calls were refused.

    What is switched off stays in the data, shown and sampled, with a loss mask of 0.
    """

    text: bool = True
    calls: bool = True
    reasoning: bool = True
    failed_turns: bool = True

    def __post_init__(self) -> None:
        if not (self.text or self.calls or self.reasoning):
            raise ValueError("nothing would train: leave one of `text`, `calls`, `reasoning` on")

    @property
    def every_part(self) -> bool:
        """Whether all parts of an action train, so that they need not be told apart."""
        return self.text and self.calls and self.reasoning


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rollout may use, and what of it may train. Tokens are counted in ids, times in seconds.

    `strip_reasoning` keeps the reasoning of earlier turns from the engine.
    """

    max_turns: int = 20
    turn_tokens: int = 4096
    rollout_tokens: int = 32768
    context_tokens: int = 32768
    tool_result_tokens: int = 4096
    call_timeout: float = 60.0
    turn_timeout: float = 300.0
    rollout_timeout: float = 900.0
    max_nudges: int = 1
    max_invalid: int = 3
    parallel_calls: bool = False
    train_timeouts: bool = False
    train_on: TrainOn = field(default_factory=TrainOn)
    strip_reasoning: bool = False
