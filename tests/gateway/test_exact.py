"""The laws behind the gateway: whatever agents do, each sampled id trains once, behind the ids that it was shown."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.datum import to_data
from orl_core.messages import Message
from orl_core.trajectory import ROOT, Trajectory
from orl_gateway.episode import tree

from tests.gateway.agents import AGENTS, LOOK, TOKENIZER, WAIT, Agent, Model, episode_of, turn
from tests.kit import one_loop
from tests.laws.checks import check_tree, shown_before

STEPS = (
    "continue",
    "continue",
    "continue",
    "rewrite",
    "fork",
    "repeat",
    "drop reasoning",
    "edit",
    "tools",
    "sub-agent",
    "compact",
)


def drop_reasoning(agent: Agent) -> None:
    """Forget what the model thought, as some clients do."""
    for message in agent.said:
        message.pop("reasoning_content", None)
        if isinstance(message.get("content"), list):
            message["content"] = [block for block in message["content"] if block.get("type") != "thinking"]
    agent.wire[agent.messages] = [message for message in agent.said if message.get("type") != "reasoning"]


def edit(agent: Agent, number: int) -> None:
    """Write other words into the last text of the model."""
    for message in reversed(agent.said):
        said = message.get("content")
        if message.get("role") != "assistant":
            continue
        if isinstance(said, str):
            message["content"] = f"Edited {number}."
            return
        for block in said or ():
            if block.get("type") in ("text", "output_text"):
                block["text"] = f"Edited {number}."
                return


class Play:
    """Agents of one API that play one episode by drawn steps."""

    def __init__(self, api: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.make = AGENTS[api]
        self.model = Model()
        self.agents = [self.new("You play.")]
        self.steps = 0

    def new(self, system: str, text: str = "Begin.", tools: Any = (LOOK, WAIT)) -> Agent:
        agent = self.make(system=system, tools=tools)
        agent.user(text)
        return agent

    def stepped(self, step: str) -> Agent:
        """The agent that asks next."""
        self.steps += 1
        number, agent = self.steps, self.random.choice(self.agents)
        if step == "rewrite":
            agent.rewrite()
        elif step == "drop reasoning":
            drop_reasoning(agent)
        elif step == "edit":
            agent = agent.branch()
            edit(agent, number)
            self.agents.append(agent)
        elif step in ("fork", "repeat"):
            agent = agent.branch() if step == "fork" else agent.repeated()
            self.agents.append(agent)
        elif step == "tools":
            agent = agent.branch()
            agent.wire["tools"] = agent.wire["tools"][:1]
            self.agents.append(agent)
        elif step == "sub-agent":
            agent = self.new(f"You help, {number}.", f"Help {number}.")
            self.agents.append(agent)
        elif step == "compact":
            agent = self.new("You play.", f"So far, {number}: {agent.last}")
            self.agents.append(agent)
        if agent.heard:
            agent.answer(f"Answer {number}")
        return agent

    async def play(self, rounds: list[list[str]], **limits: Any) -> Trajectory:
        async with episode_of(self.model, **limits) as episode:
            for steps in rounds:
                asking = {id(agent): agent for agent in map(self.stepped, steps)}
                await asyncio.gather(*(turn(episode, agent) for agent in asking.values()))
            await episode.finish()
            return episode.trajectory()


def check_exact(play: Play, trajectory: Trajectory) -> None:
    """Every answer of the engine is one turn, behind the ids that the engine was shown, and trains in one datum."""
    assert trajectory.error == ""
    shown = [
        ((*shown_before(trajectory, index), *turn.observation), turn.action_ids)
        for index, turn in enumerate(trajectory.turns)
    ]
    assert Counter(shown) == Counter((ids, generation.token_ids) for ids, generation in play.model.requests)
    data = to_data(trajectory, reward=1.0)
    check_tree(trajectory, data)
    assert sum(sum(datum.loss_mask) for datum in data) == sum(len(one.token_ids) for _, one in play.model.requests)
    if not any(turn.stripped_spans for turn in trajectory.turns):
        assert len(data) == 1 + len(trajectory.parents) - len({*trajectory.parents})


rounds = st.lists(st.lists(st.sampled_from(STEPS), min_size=1, max_size=3), min_size=1, max_size=8)
apis = st.sampled_from([*AGENTS])


@given(api=apis, rounds=rounds, seed=st.integers(0, 99), strips=st.booleans())
def test_each_sampled_id_trains_once(api: str, rounds: list[list[str]], seed: int, strips: bool) -> None:
    play = Play(api, seed)
    check_exact(play, one_loop.run(play.play(rounds, strip_reasoning=strips)))


@given(api=apis, steps=st.lists(st.sampled_from(["continue", "rewrite", "drop reasoning"]), min_size=1, max_size=12))
def test_linear_conversation_is_one_row(api: str, steps: list[str]) -> None:
    check_one_row(api, steps)


def check_one_row(api: str, steps: list[str]) -> None:
    play = Play(api, 0)
    trajectory = one_loop.run(play.play([[step] for step in steps]))
    check_exact(play, trajectory)
    assert len(to_data(trajectory, reward=1.0)) == 1
    assert all(turn.continues is None for turn in trajectory.turns)


@given(api=apis, rounds=rounds, seed=st.integers(0, 99))
def test_model_reads_all_that_agents_say(api: str, rounds: list[list[str]], seed: int) -> None:
    check_read(api, rounds, seed)


def check_read(api: str, rounds: list[list[str]], seed: int) -> None:
    """Each message of a request is in the prompt, in order: also one that was edited."""
    play = Play(api, seed)
    asked: list[tuple[Message, ...]] = []
    place = tree.Tree.place

    def recorded(self: tree.Tree, request: Any) -> tree.Place:
        asked.append(request.messages)
        return place(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree.Tree, "place", recorded)
        one_loop.run(play.play(rounds))
    assert len(asked) == len(play.model.requests)
    prompts = [TOKENIZER.decode(ids) for ids, _ in play.model.requests]
    assert all(any(in_order(messages, prompt) for prompt in prompts) for messages in asked)
    assert all(any(in_order(messages, prompt) for messages in asked) for prompt in prompts)


def in_order(messages: tuple[Message, ...], prompt: str) -> bool:
    at = 0
    for text in (message.text.strip() for message in messages):
        at = prompt.find(text, at)
        if at < 0:
            return False
    return True


NEXT_KEY = tree.next_key


def blind(key: bytes, message: Message) -> bytes:
    """A matcher that takes any words of the model for those that it said."""
    return NEXT_KEY(key, structs.replace(message, content=()) if message.role == "assistant" else message)


def test_negative_control_matcher_blind_to_edits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "next_key", blind)
    with pytest.raises(AssertionError):
        check_read("chat", [["continue"], ["edit"]], 0)


@pytest.mark.parametrize("api", AGENTS)
def test_negative_control_matcher_of_bytes_is_found(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "canonical", json.dumps)
    with pytest.raises(AssertionError):
        check_one_row(api, ["continue", "continue", "rewrite", "continue"])


def test_negative_control_lost_turn_is_found() -> None:
    play = Play("chat", 0)
    trajectory = one_loop.run(play.play([["continue"], ["fork"], ["continue"]]))
    lost = structs.replace(trajectory, turns=trajectory.turns[:-1])
    with pytest.raises(AssertionError):
        check_exact(play, lost)


@pytest.mark.parametrize("api", AGENTS)
@pytest.mark.parametrize("step", ["edit", "tools", "sub-agent", "compact"])
def test_other_history_begins_a_conversation(api: str, step: str) -> None:
    play = Play(api, 0)
    trajectory = one_loop.run(play.play([["continue"], [step]]))
    assert [turn.continues for turn in trajectory.turns] == [None, ROOT]


def test_changed_reasoning_is_a_branch() -> None:
    play = Play("chat", 0)
    play.model.kinds = ("reasoned",)

    async def main() -> Trajectory:
        async with episode_of(play.model) as episode:
            (agent,) = play.agents
            await turn(episode, agent)
            agent.said[-1]["reasoning_content"] = "Other thoughts."
            agent.answer("Answer")
            await turn(episode, agent)
            return episode.trajectory()

    trajectory = one_loop.run(main())
    assert [turn.continues for turn in trajectory.turns] == [None, ROOT]
    assert "Other thoughts." in TOKENIZER.decode(trajectory.turns[1].observation)


def test_dropped_reasoning_stays_unless_it_is_stripped() -> None:
    for strips, rows in ((False, 1), (True, 4)):
        play = Play("anthropic", 0)
        play.model.kinds = ("reasoned",)
        trajectory = one_loop.run(play.play([["drop reasoning"]] * 4, strip_reasoning=strips))
        check_exact(play, trajectory)
        assert len(to_data(trajectory, reward=1.0)) == rows
        assert ("Thought 0" in TOKENIZER.decode(play.model.requests[-1][0])) is not strips
