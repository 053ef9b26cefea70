"""Real command line agents play GuessNumber over MCP: each wins, every linear stretch is one row, all ids train."""

from __future__ import annotations

import pytest
from orl_core.trajectory import StopReason
from orl_rollout import stats_of

from tests.agents.programs import HEAD, PAGE, PROGRAMS, Program, row_of, write
from tests.kit.guessing import GUESSES, Guesser, play

pytestmark = pytest.mark.agents

CONTEXT_TOKENS = 1 << 17  # of the test's tokenizer, which cuts a prompt of 60,000 characters into many ids


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """The rows of the table, of the programs that were played."""
    return {}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
async def test_program_wins_and_linear_stretches_are_one_row(
    program: Program, guess_number: str, rows: dict[str, str]
) -> None:
    engine = Guesser()
    outcome = await play(guess_number, program.agent, engine, context_tokens=CONTEXT_TOKENS)
    rows[program.title] = row_of(program, outcome)
    stats, trajectory = stats_of(outcome), outcome.trajectory
    assert (trajectory.error, trajectory.stop_reason, outcome.reward) == ("", StopReason.FINISHED, 1.0)
    assert (stats.rows, stats.turns) == (program.rows, GUESSES - 1 + program.rows)
    assert stats.action_tokens == stats.trained_tokens == engine.sampled


def test_table_of_the_page_is_what_was_played(rows: dict[str, str], request: pytest.FixtureRequest) -> None:
    assert len(rows) == len(PROGRAMS), "every program has to be played"
    if request.config.getoption("--write-table"):
        write([*rows.values()])
    assert HEAD + "\n".join(rows.values()) in PAGE.read_text("utf-8"), "just nightly agents --write-table"
