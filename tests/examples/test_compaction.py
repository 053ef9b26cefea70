"""A game that does not fit into the context is lost by the loop, and won by an agent that compacts."""

from __future__ import annotations

from orl_core.trajectory import StopReason
from orl_rollout import stats_of

from tests.kit.guessing import GUESSES, Guesser, play

CONTEXT_TOKENS = 560  # two guesses of four


async def test_loop_cannot_win(guess_number: str) -> None:
    outcome = await play(guess_number, None, Guesser(), context_tokens=CONTEXT_TOKENS)
    assert (outcome.reward, outcome.trajectory.stop_reason) == (0.0, StopReason.MAX_TOKENS)
    assert len(outcome.trajectory.turns) < GUESSES


async def test_agent_that_compacts_wins_in_two_rows_that_train_all_ids(guess_number: str) -> None:
    engine = Guesser()
    outcome = await play(guess_number, "examples.agents.compacting:agent", engine, context_tokens=CONTEXT_TOKENS)
    stats = stats_of(outcome)
    assert (outcome.reward, outcome.trajectory.stop_reason) == (1.0, StopReason.FINISHED)
    assert (stats.turns, stats.rows) == (GUESSES, 2)
    assert stats.action_tokens == stats.trained_tokens == engine.sampled
    assert {datum.rollout_id for datum in outcome.datums} == {"one"}
    assert {datum.reward for datum in outcome.datums} == {1.0}
