"""Each agent of examples/agents plays to the end in one row. Its model reads what that of the built-in loop reads."""

from __future__ import annotations

import pytest
from msgspec import structs
from orl_core.config import AgentConfig
from orl_core.messages import TextBlock, ToolResult, ToolSpec
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_gateway.agent.agent_player import player_of
from orl_rollout import stats_of
from orl_testing import ScriptedEngine, ScriptedSession

from tests.gateway.agents import LIMITS, RENDERER, TASK, Model, call_text, generation_of
from tests.kit.guessing import GUESSES, Guesser, play

LOOK = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
MANY = 14  # more turns than the frameworks allow by themselves

pytestmark = [
    pytest.mark.slow,  # imports of the frameworks
    pytest.mark.parametrize("agent", ["openai_agents", "langgraph_agent"]),
    pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead"),  # the Agents SDK calls the older one
]


async def play_long(agent: str, **limits: int) -> Trajectory:
    results = [
        ToolResult(name="look", content=(TextBlock(text=f"Wall {at}."),), reward=float(at == MANY), finished=at == MANY)
        for at in range(1, MANY + 1)
    ]
    job = RolloutSpec(task=TASK, rollout_id="k", limits=structs.replace(LIMITS, **limits))
    session = ScriptedSession(results, tools=(LOOK,))
    player = player_of(AgentConfig(function=f"examples.agents.{agent}:agent"))
    return await player(job, session=session, renderer=RENDERER, engine=Model(("call",)))


async def test_agent_wins_in_one_row(agent: str, guess_number: str) -> None:
    engine = Guesser()
    outcome = await play(guess_number, f"examples.agents.{agent}:agent", engine)
    stats = stats_of(outcome)
    assert (outcome.reward, outcome.trajectory.stop_reason) == (1.0, StopReason.FINISHED)
    assert (stats.turns, stats.rows) == (GUESSES, 1)
    assert stats.action_tokens == stats.trained_tokens == engine.sampled


async def test_model_reads_the_same_as_in_the_loop(agent: str, guess_number: str) -> None:
    played = Guesser()
    outcome = await play(guess_number, f"examples.agents.{agent}:agent", played)
    loops = await play(guess_number, None, Guesser())
    assert [turn.observation for turn in outcome.trajectory.turns] == [
        turn.observation for turn in loops.trajectory.turns
    ]


async def test_framework_does_not_limit_the_turns(agent: str) -> None:
    trajectory = await play_long(agent)
    assert (trajectory.stop_reason, len(trajectory.turns), trajectory.error) == (StopReason.FINISHED, MANY, "")


async def test_turns_of_the_configuration_end_the_agent(agent: str) -> None:
    trajectory = await play_long(agent, max_turns=3)
    assert (trajectory.stop_reason, len(trajectory.turns), trajectory.error) == (StopReason.MAX_TURNS, 3, "")


async def test_call_of_an_unknown_tool_is_a_mistake_of_the_model(agent: str) -> None:
    engine = ScriptedEngine([generation_of(call_text("fly")), generation_of(call_text("look", at="1"))])
    session = ScriptedSession([ToolResult(name="look", reward=1.0, finished=True)], tools=(LOOK,))
    player = player_of(AgentConfig(function=f"examples.agents.{agent}:agent"))
    job = RolloutSpec(task=TASK, rollout_id="k", limits=LIMITS)
    trajectory = await player(job, session=session, renderer=RENDERER, engine=engine)
    assert (trajectory.stop_reason, len(trajectory.turns), trajectory.error) == (StopReason.FINISHED, 2, "")
