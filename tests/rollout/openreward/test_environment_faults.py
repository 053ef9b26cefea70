"""Each fault of an environment at each moment of a rollout: one test a cell of the tables below.

The whole loop plays a real session on the SDK's own server, with a proxy between them where the fault is the wire's.
An episode calls `step` twice and then `finish`; in the column "second" both steps are calls of one action, for a few
faults. A cell says

    played N   the episode went as it should: FINISHED, reward 1, every sampled turn trains
    ended N    the environment ended it at the fault: FINISHED with the reward of that call, every sampled turn trains
    lost N     ERROR, and nothing trains; the turns are kept as they were sampled
    late N     ERROR at the deadline of the rollout, which has not begun by then

where N is how often the environment ran `step`: never twice for one call. A `+` after it means that the session is
still alive on the server, because the fault hit the way to delete it; otherwise none is. "-" is no case.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from orl_core.datum import to_data
from orl_core.limits import Limits
from orl_core.reward import reduce_reward
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_rollout.loop.loop import rollout
from orl_rollout.openreward import OpenRewardClient
from orl_testing import ScriptedEngine
from orl_testing import environments as envs
from orl_testing.proxy import Mishap, MishapKind, Proxy

from tests.kit.episodes import RENDERER, config_of, model, task_of

# What goes wrong on the wire. "once" is the opening's first request of its kind alone, "opening" every one of them.
WIRE = """
           opening   once      first     later     second    closing
500        lost 0    played 2  lost 0    lost 1    lost 1    played 2
429        lost 0    lost 0    lost 0    lost 1    -         played 2
404        lost 0    lost 0    lost 0    lost 1    -         -
starting   late 0    played 2  played 2  played 2  -         played 2
hang       late 0    late 0    lost 0    lost 1    -         played 2+
reset      lost 0    played 2  lost 0    lost 1    -         played 2
lose       lost 0    played 2  lost 1    lost 2    lost 2    played 2
cut        lost 0    played 2  played 2  played 2  -         played 2
garbage    lost 0    lost 0    lost 1    lost 2    -         played 2
die        lost 0    lost 0    lost 0+   lost 1+   -         played 2+
"""

# What the environment itself does.
ENVIRONMENT = """
           init      setup     prompt    first     later     second    teardown
raise      lost 0    lost 0    lost 0    lost 1    lost 2    lost 2    played 2
hang       -         late 0    late 0    lost 1    lost 2    -         played 2
empty      -         -         played 2  played 2  played 2  -         -
nothing    -         -         lost 0    played 2  played 2  -         -
huge       -         -         -         played 2  played 2  -         -
control    -         -         played 2  played 2  played 2  -         -
image      -         -         lost 0    lost 1    lost 2    -         -
null       -         -         -         played 2  played 2  -         -
nan        -         -         -         lost 1    lost 2    -         -
finished   -         -         -         ended 1   ended 2   ended 2   -
"""

pytestmark = pytest.mark.usefixtures("short_pauses")

STEPS = ("step",), ("step",), ("finish",)
BOTH = ("step", "step"), ("finish",)
REASONS = {
    "played": StopReason.FINISHED,
    "ended": StopReason.FINISHED,
    "lost": StopReason.ERROR,
    "late": StopReason.ERROR,
}
NUMBERS = itertools.count()


def cells(table: str) -> list[tuple[str, str, str]]:
    """The cells of a table: fault, moment, what comes of it."""
    head, *rows = table.strip().splitlines()
    found: list[tuple[str, str, str]] = []
    for row in rows:
        fault, *words = row.replace("lost ", "lost_").replace("played ", "played_").split()
        words = [
            word.replace("_", " ")
            for word in " ".join(words).replace("late ", "late_").replace("ended ", "ended_").split()
        ]
        found += [(fault, moment, word) for moment, word in zip(head.split(), words, strict=True) if word != "-"]
    return found


def mishap_of(fault: str, moment: str) -> Mishap:
    """The wire's fault at a moment."""
    path = {"opening": "/create", "once": "/create", "closing": "/delete"}.get(moment, "/call")
    at = {"opening": None, "once": 0, "first": 0, "closing": 0}.get(moment, 1)
    if fault == "starting":
        headers = {"X-Backend-State": "starting", "Retry-After": "0"}
        return Mishap(kind=MishapKind.STATUS, path=path, at=at, status=503, headers=headers)
    if fault.isdecimal():
        return Mishap(kind=MishapKind.STATUS, path=path, at=at, status=int(fault))
    return Mishap(kind=MishapKind(fault), path=path, at=at)


async def play(url: str, engine: ScriptedEngine, spec: dict[str, Any], expected: str) -> Trajectory:
    """A rollout of `Trouble`. Where something hangs, the deadline that is to end it is short."""
    late, hangs = expected.startswith("late"), spec.get("hangs")
    limits = Limits(
        call_timeout=0.5 if hangs and not late else 20.0,
        rollout_timeout=0.8 if late else 40.0,
        tool_result_tokens=200,
        max_turns=4,
    )
    async with OpenRewardClient(config_of("Trouble", url, call_timeout=0.5 if hangs else 5.0)) as client:
        task = task_of("Trouble", **spec)
        job = RolloutSpec(task=task, rollout_id="k", limits=limits)
        return await rollout(job, session=client.session(task), renderer=RENDERER, engine=engine)


def check(trajectory: Trajectory, engine: ScriptedEngine, name: str, expected: str) -> None:
    """Compare what came of a rollout with a cell."""
    word, ran = expected.rstrip("+").split()
    assert trajectory.stop_reason is REASONS[word], trajectory.error
    assert envs.Trouble.ran[name] == int(ran)
    assert bool(trajectory.error) is (word in {"lost", "late"})
    sampled = [request.generation.token_ids for request in engine.requests]
    assert [turn.action_ids for turn in trajectory.turns] == sampled
    (datum,) = to_data(trajectory, reward=0.0) or (None,)
    trains = word in {"played", "ended"}
    assert trajectory.trainable is trains
    if trains:
        assert datum is not None
        last = engine.requests[-1]
        assert datum.prompt + datum.response == last.token_ids + last.generation.token_ids
        assert sum(datum.loss_mask) == sum(map(len, sampled))
        environment = config_of("Trouble", None).environments["gallery/Trouble"]
        assert reduce_reward(trajectory, environment) == (1.0 if word == "played" else 0.5)
    elif datum is not None:
        assert not datum.trainable
        assert not any(datum.loss_mask)


async def settled(gallery: envs.Served, before: int, left: int) -> None:
    """The server keeps no session but those that could not be deleted, and this loop no task."""
    async with asyncio.timeout(10):
        while gallery.sessions - before != left:  # noqa: ASYNC110 - the server is on another thread
            await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("fault", "moment", "expected"), cells(WIRE))
async def test_a_fault_of_the_wire(gallery: envs.Served, fault: str, moment: str, expected: str):
    name = f"wire {next(NUMBERS)}"
    engine = model(*(BOTH if moment == "second" else STEPS))
    before = gallery.sessions
    async with Proxy(gallery.url, [mishap_of(fault, moment)]) as way:
        trajectory = await play(way.url, engine, {"name": name, "hangs": fault == "hang"}, expected)
    check(trajectory, engine, name, expected)
    made = 1 + (2 if moment == "opening" and fault in {"500", "reset", "lose", "cut"} else 0)
    made += moment == "once" and expected == "played 2" and fault != "starting"
    assert way.count("/create_session") == made
    if fault != "die":
        assert way.count("/delete_session") == made
    await settled(gallery, before, expected.endswith("+"))


@pytest.mark.parametrize(("fault", "moment", "expected"), cells(ENVIRONMENT))
async def test_a_fault_of_the_environment(gallery: envs.Served, fault: str, moment: str, expected: str):
    name = f"environment {next(NUMBERS)}"
    engine = model(*(BOTH if moment == "second" else STEPS))
    at = "tool" if moment in {"first", "later", "second"} else moment
    spec = {"name": name, "at": at, "does": fault, "call": 0 if moment == "first" else 1, "hangs": fault == "hang"}
    before = gallery.sessions
    trajectory = await play(gallery.url, engine, spec, expected)
    check(trajectory, engine, name, expected)
    await settled(gallery, before, 0)
