"""Agents that get no answer, or end on a request that was refused: they have not played (law L3).

Each is tried as a function and as a real program on loopback. An ending that the environment or a budget gives stays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs
from orl_core.config import EnvironmentConfig
from orl_core.datum import to_data
from orl_core.estimators import ESTIMATORS
from orl_core.limits import Limits
from orl_core.trajectory import RolloutSpec, StopDetail, StopReason, Trajectory
from orl_gateway import AgentEpisode, Gateway
from orl_gateway.agent.agent_player import Agent, AgentPlayer, player_of
from orl_rollout.episodes.journal import Journal
from orl_rollout.results.metrics import evaluation_metrics, stats_of
from orl_rollout.results.outcome import outcome_of
from orl_rollout.runtime.runtime import Player, RolloutRequest
from orl_rollout.training.rows import rows_of
from orl_testing import ScriptedSession

from tests.gateway.agents import LIMITS, RENDERER, TASK, Model
from tests.gateway.test_player import Late, Sessions, config_of, play, program, session_of
from tests.gateway.test_server import Waiting
from tests.kit.runtimes import runtime_of
from tests.kit.secrets import NO_SECRETS

USER = {"role": "user", "content": "Begin."}
CHAT, LOST = "/chat/completions", "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "m", "messages": [USER]}
REFUSED: dict[str, Any] = {**HELLO, "response_format": {"type": "json_object"}}
MALFORMED: dict[str, Any] = {**HELLO, "messages": "Begin."}
SAID = "usage: agent [--fast] PROMPT"

Asked = Sequence[tuple[str, dict[str, Any]]]  # paths after the base URL, and bodies

# A program that sends requests, takes no notice of refusals, and ends with exit code 0.
CARELESS = """
import json, os, sys, urllib.error, urllib.request
key = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
for path, body in json.loads({asked!r}):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), key)
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError:
        pass
print({said!r})
"""


def function_of(asked: Asked) -> Agent:
    """An agent that sends requests and takes no notice of refusals."""

    async def careless(episode: AgentEpisode) -> None:
        async with aiohttp.ClientSession() as http:
            for path, body in asked:
                async with http.post(episode.base_url + path, json=body) as answer:
                    await answer.read()

    return careless


def player(kind: str, asked: Asked) -> Player:
    if kind == "function":
        return AgentPlayer(function_of(asked))
    return player_of(program(CARELESS.format(asked=json.dumps(list(asked)), said=SAID)))


async def played(player: Player, *, engine: Any = None, limits: Limits = LIMITS) -> Trajectory:
    job = RolloutSpec(task=TASK, rollout_id="k", limits=limits)
    return await player(job, session=session_of(1.0), renderer=RENDERER, engine=engine or Model(("call",)))


KINDS = pytest.mark.parametrize("kind", ["function", "program"])


@KINDS
@pytest.mark.parametrize(
    ("asked", "subject"),
    [
        ([], "no request to the model"),
        ([(CHAT, REFUSED)] * 2, "response_format"),
        ([(LOST, HELLO)], "/v1/v1/chat/completions"),
        ([(LOST, HELLO), (CHAT, REFUSED), (LOST, HELLO)], "response_format"),  # what was understood tells more
        ([(CHAT, HELLO), (CHAT, REFUSED)], "response_format"),
        ([(CHAT, HELLO), (CHAT, MALFORMED)], "messages"),
    ],
    ids=["nothing", "refused", "lost", "lost and refused", "last unsupported", "last malformed"],
)
async def test_agent_that_did_not_play_is_an_error(kind: str, asked: Asked, subject: str) -> None:
    trajectory = await played(player(kind, asked))
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.ERROR, None)
    assert subject in trajectory.error
    assert (SAID in trajectory.error) is (kind == "program")
    assert not any(datum.trainable for datum in to_data(trajectory, reward=1.0))


@KINDS
async def test_refusal_that_a_later_answer_follows_is_forgotten(kind: str) -> None:
    trajectory = await played(player(kind, [(LOST, HELLO), (CHAT, REFUSED), (CHAT, HELLO), (LOST, HELLO)]))
    assert (trajectory.error, trajectory.stop_detail) == ("", StopDetail.NO_CALL)


async def test_text_of_an_agent_that_was_refused_is_no_answer() -> None:
    session = ScriptedSession(accepts_text_answer=True)
    trajectory = await play(function_of([(CHAT, HELLO), (CHAT, REFUSED)]), session, Model(("text",)))
    assert trajectory.stop_reason is StopReason.ERROR
    assert session.answers == []


# A program that repeats its last request again and again, whatever it is told.
STUBBORN = """
import json, os, pathlib, sys, time, urllib.error, urllib.request
print({said!r}, flush=True)
key = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
asked = json.loads({asked!r})
while True:
    for body in asked:
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), key
        )
        try:
            urllib.request.urlopen(request).read()
        except urllib.error.HTTPError:
            pass
    pathlib.Path({told!r}).touch()
    asked = asked[-1:]
    time.sleep(0.05)
"""


@pytest.mark.parametrize("asked", [[REFUSED], [HELLO, REFUSED]], ids=["each", "the last ones"])
async def test_agent_refused_until_the_deadline_is_an_error(
    asked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "refused"
    agent = program(STUBBORN.format(said=SAID, asked=json.dumps(asked), told=str(told)))
    monkeypatch.setattr("orl_gateway.agent.agent_player.time", Late(told.exists))
    trajectory = await played(player_of(agent))
    assert trajectory.stop_reason is StopReason.ERROR
    assert "response_format" in trajectory.error
    assert SAID in trajectory.error


async def test_agent_without_an_answer_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Waiting(RuntimeError("never"))
    monkeypatch.setattr("orl_gateway.agent.agent_player.time", Late(engine.begun.is_set))
    trajectory = await play(function_of([(CHAT, HELLO)]), session_of(1.0), engine)
    assert (trajectory.stop_reason, trajectory.turns) == (StopReason.ERROR, ())
    assert "no request to the model" not in trajectory.error


async def test_win_after_a_refusal_is_a_win() -> None:
    async def calls(episode: AgentEpisode) -> None:
        await function_of([(CHAT, HELLO), (CHAT, REFUSED)])(episode)
        await episode.call("look", at=1)

    trajectory = await play(calls, session_of(1.0))
    assert (trajectory.stop_reason, trajectory.rewards) == (StopReason.FINISHED, (1.0,))


@KINDS
async def test_budget_after_a_refusal_is_an_ending(kind: str) -> None:
    asked = [(CHAT, HELLO)] * 2 + [(CHAT, REFUSED)] + [(CHAT, HELLO)] * 2
    limits = structs.replace(LIMITS, max_turns=2)
    trajectory = await played(player(kind, asked), limits=limits)
    assert (trajectory.error, trajectory.stop_reason) == ("", StopReason.MAX_TURNS)


async def test_abort_before_the_first_turn_is_no_error() -> None:
    trajectory = await play(function_of([]), session_of(1.0), stopped=lambda: True)
    assert (trajectory.error, trajectory.stop_reason) == ("", StopReason.ABORTED)


async def test_no_secret_is_in_the_error_of_exit_code_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-value")
    code = "import os; print(os.environ['MY_API_KEY'], os.environ['OPENAI_API_KEY'], os.environ['ORL_MCP_URL'], 'end')"
    agent = structs.replace(program(code), env={"MY_API_KEY": None})
    config = config_of(agent={"command": [*agent.command], "env": agent.env})
    tokens: list[str] = []
    add = Gateway.add
    monkeypatch.setattr(Gateway, "add", lambda *given: tokens.append(add(*given)) or tokens[-1])
    with Journal(tmp_path) as journal:
        runtime = runtime_of(config, Sessions(), renderer=RENDERER, journal=journal)
        outcome = await runtime.play(RolloutRequest(task=TASK, rollout_id="k"), Model(("call",)))
    error = outcome.trajectory.error
    assert error.endswith("end")
    assert "planted-secret-value" not in error
    assert tokens[0] not in error


async def test_agent_that_did_not_play_is_in_no_metric() -> None:
    trajectories = [await play(function_of(asked), session_of(1.0)) for asked in ([], [(CHAT, HELLO), (CHAT, REFUSED)])]
    outcomes = [outcome_of(trajectory, EnvironmentConfig(), NO_SECRETS) for trajectory in trajectories]
    metrics = evaluation_metrics(map(stats_of, outcomes))
    assert (metrics["A/B/rollouts"], metrics["A/B/judged"], metrics["A/B/tasks"]) == (2, 0, 0)
    assert not any(name.endswith(("/reward", "/success")) or "pass@" in name for name in metrics)
    assert rows_of(outcomes, 2, ESTIMATORS["grpo"], turns=False) == []
