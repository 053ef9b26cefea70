"""Section `rollout` of the configuration: budgets, deadlines, patience and records of every rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from orl_core.config.checked import Checked
from orl_core.limits import Budgets, Positive, Seconds


class RolloutConfig(Budgets, Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set budgets, deadlines and records of every rollout. Deadlines nest: call, turn, rollout."""

    context_tokens: Annotated[
        Positive | None,
        Meta(description="Most tokens of prompt and response together; null: that of the trainer, or else 32768."),
    ] = None
    rollout_tokens: Annotated[Positive | None, Meta(description="Most sampled tokens; null: `context_tokens`.")] = None
    patience: Annotated[
        Seconds,
        Meta(
            description="Seconds to wait for a server of sessions, an engine or a judge that is away or busy. No "
            "deadline counts them. A server that has never answered gets 10."
        ),
    ] = 600.0
    max_error_rate: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of recent rollouts in ERROR that aborts the run. Rollouts lost with their server count "
            "once none succeeds for `patience`.",
        ),
    ] = 0.5
    reward_timeout: Annotated[
        Seconds | None,
        Meta(
            description="Deadline of one call of your reward function, in seconds from its start; null: 300, or "
            "`rollout_timeout` if that is less."
        ),
    ] = None
    reward_concurrency: Annotated[
        Positive | None,
        Meta(
            description="Calls of your reward function at once; null: 64 of an `async def`, else the cores plus 4. The "
            "run ends after as many calls that never came back."
        ),
    ] = None
    workers: Annotated[
        Positive,
        Meta(
            description="Processes that play the rollouts of `local` with SGLang or vLLM, and of "
            "`orl rollout --engine`; more than one pays from about 450 turns a second. They share each limit."
        ),
    ] = 1
    journal: Annotated[str | None, Meta(description="Folder of the journal; null means the run's own folder.")] = None
    upload: Annotated[
        bool | None, Meta(description="Upload rollouts to OpenReward; null: of its own environments, if a key is set.")
    ] = None

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong with the deadlines."""
        if not self.call_timeout <= self.turn_timeout <= self.rollout_timeout:
            yield (
                f"deadlines must nest, but `call_timeout` is {self.call_timeout}, `turn_timeout` {self.turn_timeout}, "
                f"`rollout_timeout` {self.rollout_timeout}. Raise the later ones"
            )
