"""Law L5 at the gateway: a turn costs the same at every length of the history that clients send. Counted."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from orl_core.messages import ToolSpec
from orl_core.render import Renderer
from orl_core.trajectory import RolloutSpec
from orl_gateway import Episode
from orl_gateway.dialects.exchange import Conversation
from orl_gateway.episode import tree
from orl_rollout.recognised_engine import RecognisedEngine
from orl_testing import ScriptedSession, SglangServer

from tests.gateway.agents import (
    AGENTS,
    LIMITS,
    LOOK,
    TASK,
    TOKENIZER,
    Agent,
    AnthropicAgent,
    call_text,
    ids_of,
    turn,
)
from tests.laws.counting import Counting

ANSWER = ids_of(call_text("look", at=1))


def counted(counts: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        counts[name] += 1
        return function(*given, **named)

    return counting


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of what is read of the wire and hashed."""
    made = Counter[str]()
    for name in ("user", "assistant", "result", "system"):
        monkeypatch.setattr(Conversation, name, counted(made, "read", getattr(Conversation, name)))
    for name in ("next_key", "root_key"):
        monkeypatch.setattr(tree, name, counted(made, "hashed", getattr(tree, name)))
    return made


async def grow(agent: Agent, turns: int, counts: Counter[str]) -> tuple[list[dict[str, int]], float]:
    """Play so many turns; what each of them cost, and the share of the possible ids that came from the prefix cache."""
    counting = Counting(TOKENIZER)
    renderer = Renderer(counting)
    job = RolloutSpec(task=TASK, rollout_id="k", limits=structs.replace(LIMITS, max_turns=turns))
    session = ScriptedSession(tools=(ToolSpec(name="look"),))
    costs: list[dict[str, int]] = []
    async with (
        SglangServer(lambda ids, sampling: ANSWER, context_tokens=1 << 16) as served,
        RecognisedEngine(served.url, context_tokens=1 << 16) as engine,
        Episode(job, session=session, renderer=renderer, engine=engine) as episode,
    ):
        agent.user("Go.")
        for _ in range(turns):
            counts.clear()
            counting.characters = counting.ids = counting.renders = 0
            await turn(episode, agent)
            agent.answer("a wall")
            tokenized = {"characters": counting.characters, "ids": counting.ids, "renders": counting.renders}
            costs.append({**tokenized, **counts})
        played = episode.trajectory().turns
    held = possible = cached = 0
    for each in played:
        possible += held
        cached += each.generations[0].cached_tokens
        held += len(each.observation) + len(each.action_ids)
    return costs, cached / possible


LONG = pytest.param("chat", 128, marks=pytest.mark.slow)


@pytest.mark.parametrize(("api", "turns"), [*((api, 20) for api in AGENTS), LONG])
async def test_turn_costs_the_same_at_every_length(api: str, turns: int, counts: Counter[str]) -> None:
    costs, cached = await grow(AGENTS[api](tools=(LOOK,)), turns, counts)
    assert len(costs) == turns
    assert {tuple(sorted(cost.items())) for cost in costs[2:]} == {tuple(sorted(costs[1].items()))}
    assert 0 < costs[1]["read"] < 5
    assert cached >= 0.95


class CachingAgent(AnthropicAgent):
    """An agent that marks its last message of the user for the prompt cache, as Claude Code does."""

    def request(self) -> bytes:
        wire = copy.deepcopy(self.wire)
        for message in [one for one in wire["messages"] if one["role"] == "user"][-1:]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return json.dumps(wire).encode()


async def test_marks_for_the_prompt_cache_cost_no_history(counts: Counter[str]) -> None:
    costs, cached = await grow(CachingAgent(tools=(LOOK,)), 20, counts)
    assert {tuple(sorted(cost.items())) for cost in costs[7:]} == {tuple(sorted(costs[6].items()))}
    assert 0 < costs[6]["read"] < 9
    assert cached >= 0.95
