"""Frameworks play GuessNumber through the gateway: each wins, its rows are known, and all ids train."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_core.trajectory import StopReason
from orl_rollout import stats_of

from tests.agents.frameworks.setups import HEAD, ROOT, SETUPS, Setup, row_of
from tests.kit.guessing import GUESSES, Guesser, play

CONTEXT_TOKENS = 1 << 17  # of the test's tokenizer, which cuts long prompts into many ids


@pytest.mark.frameworks
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.title)
async def test_framework_wins_in_the_rows_that_are_known(setup: Setup, guess_number: str, tmp_path: Path) -> None:
    setup.install()
    engine = Guesser(setup.form)
    outcome = await play(guess_number, setup.agent(tmp_path), engine, context_tokens=CONTEXT_TOKENS)
    stats, trajectory = stats_of(outcome), outcome.trajectory
    assert (trajectory.error, trajectory.stop_reason, outcome.reward) == ("", StopReason.FINISHED, 1.0)
    assert (stats.turns, stats.rows) == (GUESSES, setup.rows)
    assert trajectory.counts == setup.counts
    assert stats.action_tokens == stats.trained_tokens == engine.sampled


def test_table_of_the_page_is_what_is_played() -> None:
    table = HEAD + "".join(f"{row_of(setup)}\n" for setup in SETUPS)
    assert f"{table}\n" in (ROOT / "tests" / "agents" / "seen.md").read_text("utf-8"), table
