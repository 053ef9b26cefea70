"""Agents lose the result of a call: the gateway refuses what follows, and what was sampled before is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec import structs
from orl_core.config import AgentConfig
from orl_core.trajectory import StopReason
from orl_rollout import stats_of

from tests.agents import losing_results
from tests.agents.frameworks.setups import SETUPS, Setup
from tests.agents.programs import PAGE, PROGRAMS, Program
from tests.kit.guessing import Guesser, play

CONTEXT_TOKENS = 1 << 17  # of the test's tokenizer, which cuts a prompt of 60,000 characters into many ids
REFUSALS = {"CrewAI": 3}  # it begins the conversation anew, twice
TEXTS = ("smolagents", "LlamaIndex", "DSPy")  # these write results as texts of the user: no call is open
DOES = {0: "finishes: its results are texts", 1: "ends with the message", 3: "plays anew twice, then ends"}
HEAD = "| agent | requests refused | what it does |\n|---|---|---|\n"


def refusals(title: str) -> int:
    """Return how many requests of an agent are refused in an episode whose first result is lost."""
    return REFUSALS.get(title, 0 if title.startswith(TEXTS) else 1)


def lines_of(log: Path) -> list[str]:
    """Return the lines that the proxy wrote."""
    return log.read_text("utf-8").splitlines()


async def loses_a_result(title: str, url: str, agent: AgentConfig, form: str, log: Path) -> None:
    """Play, and assert that an agent is refused as often as the table says and that no sampled id is lost."""
    command = (sys.executable, losing_results.__file__, str(log), *agent.command)
    engine = Guesser(form)
    outcome = await play(url, structs.replace(agent, command=command), engine, context_tokens=CONTEXT_TOKENS)
    *statuses, code = lines_of(log)
    refused = refusals(title)
    assert statuses == ["400"] * refused
    assert (outcome.trajectory.stop_reason, code) == (StopReason.ERROR if refused else StopReason.FINISHED, "exit 1")
    assert sum(len(turn.action_ids) for turn in outcome.trajectory.turns) == engine.sampled
    assert stats_of(outcome).trained_tokens == (0 if refused else engine.sampled)


@pytest.mark.agents
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
async def test_program_reads_which_call_is_open(program: Program, guess_number: str, tmp_path: Path) -> None:
    await loses_a_result(program.title, guess_number, program.agent, "", tmp_path / "log")


@pytest.mark.frameworks
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.title)
async def test_framework_reads_which_call_is_open(setup: Setup, guess_number: str, tmp_path: Path) -> None:
    setup.install()
    await loses_a_result(setup.title, guess_number, setup.agent(tmp_path), setup.form, tmp_path / "log")


def test_table_of_refusals_is_what_is_asserted() -> None:
    titles = [one.title for one in (*PROGRAMS, *SETUPS)]
    rows = [f"| {title} | {refusals(title)} | {DOES[refusals(title)]} |" for title in titles]
    assert HEAD + "\n".join(rows) + "\n" in PAGE.read_text("utf-8"), HEAD + "\n".join(rows)
