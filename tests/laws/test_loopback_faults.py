"""Pairs of faults on the wire: real engine clients before stand-ins of SGLang and vLLM, the real SDK before a server.

Fewer examples than with the fakes of `episodes`, and the same promises: the outcome, what is trained, no session open,
no request running, no task left, no tool run twice.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orl_core.config import decode_config
from orl_core.task import Task
from orl_core.trajectory import StopReason
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine
from orl_testing import Fault, FaultKind, SglangServer, VllmServer
from orl_testing.environments import Served, serve

from tests.kit.runtimes import runtime_of
from tests.laws.checks import check_data
from tests.laws.episodes import HALVES, TOKENIZER

TURNS = 2
HANG_SECONDS = 0.4  # a deadline that is meant to pass; where none is, deadlines are far away


class World(NamedTuple):
    """An environment of the gallery, the call that the model makes, and how the first such call ends the episode."""

    name: str
    call: str
    ends: StopReason | None = None
    hangs: bool = False


class Wire(NamedTuple):
    """The stand-in of an engine, and the client of it."""

    server: type[SglangServer]
    client: type[SglangEngine | VllmEngine]


SGLANG, VLLM = Wire(SglangServer, SglangEngine), Wire(VllmServer, VllmEngine)  # vLLM is asked for no routed experts
WORLDS = (
    World("Echo", '{"name": "echo", "arguments": {"text": "hi"}}'),
    World("Echo", '{"name": "echo", "arguments": {"text": 7}}'),  # refused by the schema: the tool does not run
    World("Echo", '{"name": "finish", "arguments": {}}', StopReason.FINISHED),
    World("Failing", '{"name": "fail", "arguments": {}}', StopReason.ERROR),
    World("NanReward", '{"name": "pay", "arguments": {}}', StopReason.ERROR),
    World("Picture", '{"name": "draw", "arguments": {}}', StopReason.ERROR),
    World("Hanging", '{"name": "wait", "arguments": {}}', StopReason.ERROR, hangs=True),
)
HARMLESS = (FaultKind.ABORT, FaultKind.RESET, FaultKind.RESET_MID_BODY, FaultKind.STATUS)  # continued, or tried again
faults = st.builds(Fault, kind=st.sampled_from(FaultKind), at=st.integers(0, TURNS - 1), tokens=st.integers(0, 2))


@pytest.fixture(scope="module")
def gallery() -> Iterator[Served]:
    with serve() as served:
        yield served


def foretold(world: World, fault: Fault, wire: Wire) -> tuple[StopReason, int]:
    """Return how the episode ends, and how many tools are run."""
    called = 0
    for request in range(TURNS):
        if fault.at == request and fault.kind not in HARMLESS and (fault.kind, wire) != (FaultKind.NO_REPLAY, VLLM):
            return StopReason.ERROR, called
        called += '"text": 7' not in world.call
        if world.ends is not None:
            return world.ends, called
    return StopReason.MAX_TURNS, called


async def play(world: World, fault: Fault, url: str, wire: Wire) -> tuple[Outcome, int]:
    """The outcome, and how many requests the engine still runs."""
    silent = fault.kind in (FaultKind.HANG, FaultKind.DOWN)  # nothing but the turn's deadline ends these
    name = f"gallery/{world.name}"
    rollout = {
        "call_timeout": HANG_SECONDS if world.hangs or silent else 60.0,
        "turn_timeout": HANG_SECONDS if silent else 60.0,
        "train_timeouts": True,
    }
    config = decode_config({"environments": {name: {"base_url": url, "max_turns": TURNS}}, "rollout": rollout}, "test")
    task = Task(env_name=name, deployment_name=name, environment_name=world.name.lower(), task_spec={"number": 1})
    said = [*HALVES, *TOKENIZER.encode_joint(f"<tool_call>\n{world.call}\n</tool_call><|im_end|>")]
    async with (
        wire.server(lambda ids, sampling: said, faults=[fault]) as server,
        wire.client(server.url, context_tokens=4096, payload={"return_routed_experts": True}) as engine,
        OpenRewardClient(config) as client,
    ):
        runtime = runtime_of(config, client)
        outcome = await runtime.play(RolloutRequest(task=task, rollout_id="k"), engine)
        async with asyncio.timeout(10):
            await server.until_running(0)
    return outcome, len(asyncio.all_tasks()) - 1


@settings(max_examples=max(settings().max_examples // 25, 2))  # the breadth is in test_fault_pairs
@given(world=st.sampled_from(WORLDS), fault=faults, wire=st.sampled_from((SGLANG, VLLM)))
def test_pairs_on_the_wire_end_as_promised(gallery: Served, world: World, fault: Fault, wire: Wire) -> None:
    asked, deleted = gallery.count("/call"), gallery.count("/delete")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome, left = asyncio.run(play(world, fault, gallery.url, wire))
    reason, called = foretold(world, fault, wire)
    trajectory = outcome.trajectory
    assert trajectory.stop_reason is reason, trajectory.error
    assert gallery.count("/call") - asked == called
    assert gallery.count("/delete") - deleted == 1
    assert gallery.sessions == 0
    assert left == 0
    check_data(trajectory, outcome.datums)
    trained = sum(sum(datum.loss_mask) for datum in outcome.datums)
    assert trained == (0 if reason is StopReason.ERROR else sum(len(turn.action_ids) for turn in trajectory.turns))
