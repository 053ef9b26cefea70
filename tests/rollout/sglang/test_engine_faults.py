"""The engine's faults at every moment of a rollout: one test a cell, the whole loop against the stand-in for SGLang.

The episode has three turns of one call each; the third call ends it. MOMENTS say which request of the engine meets the
fault, FAULTS what comes of it when it passes (it meets two requests in a row) and when it stays. LENGTHS are the same
for budgets: what is sampled is counted off against each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pytest
from orl_core.datum import to_data
from orl_core.limits import Limits
from orl_core.messages import TextBlock, ToolResult
from orl_core.task import Task
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_rollout.engine_connection import Timeouts
from orl_rollout.loop.loop import rollout
from orl_rollout.sglang.client import SglangEngine
from orl_testing import Fault, FaultKind, ScriptedSession, SglangServer

from tests.kit.serving import HANGS, leaving_no_task
from tests.kit.tokenizers import renderer_of, tokenizer

TOKENIZER = tokenizer()
RENDERER = renderer_of()
TASK = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})
TURNS = 3


def answer(x: int) -> list[int]:
    """A call of the one tool. Every digit is an id of its own."""
    call = f'<tool_call>\n{{"name": "act", "arguments": {{"x": {x}}}}}\n</tool_call><|im_end|>'
    return TOKENIZER.encode_joint(call)


ANSWERS = [answer(1), answer(222), answer(33333)]  # each longer than the one before
PARTIAL = 3  # how many ids an aborted request returns


def model(ids: list[int], sampling: dict[str, Any]) -> Sequence[int]:
    """The answer of the turn that `ids` have come to, or what is left of it."""
    text = TOKENIZER.decode(ids)
    said = ANSWERS[text.count("}}\n</tool_call><|im_end|>")]
    begun = next(size for size in range(len(said) - 1, -1, -1) if ids[len(ids) - size :] == said[:size])
    return said[begun:]


class Moment(NamedTuple):
    """When the fault comes: the place of the request, its turn, and what the engine had returned in that turn."""

    request: int
    turn: int
    begun: int = 0


MOMENTS = {
    "first turn": Moment(request=0, turn=0),
    "later turn": Moment(request=1, turn=1),
    "last allowed turn": Moment(request=2, turn=2),
    "after an abort was continued": Moment(request=1, turn=0, begun=PARTIAL),
}

UNAFFECTED = "unaffected"  # FINISHED, every id of every answer trains
ERROR = "error"  # the turns so far are kept, nothing trains


class Row(NamedTuple):
    """The outcome of a fault, and the words of its error."""

    fault: Fault
    passes: Literal["unaffected", "error"]
    stays: Literal["unaffected", "error"]
    words: str
    retried: bool = False


def _status(status: int) -> Fault:
    return Fault(kind=FaultKind.STATUS, status=status)


FAULTS = {
    # the fault, what comes of it if transient, if permanent, and what the error says then
    "500": Row(_status(500), UNAFFECTED, ERROR, "HTTP 500: injected", retried=True),
    "429": Row(_status(429), UNAFFECTED, ERROR, "HTTP 429: injected", retried=True),
    "503": Row(_status(503), UNAFFECTED, ERROR, "HTTP 503: injected", retried=True),
    "400": Row(_status(400), ERROR, ERROR, "HTTP 400: injected"),
    "refused": Row(Fault(kind=FaultKind.DOWN), UNAFFECTED, ERROR, "Cannot connect", retried=True),
    "reset": Row(Fault(kind=FaultKind.RESET), UNAFFECTED, ERROR, "ServerDisconnected", retried=True),
    "reset mid-body": Row(Fault(kind=FaultKind.RESET_MID_BODY), UNAFFECTED, ERROR, "ClientPayloadError", retried=True),
    "hang": Row(Fault(kind=FaultKind.HANG), ERROR, ERROR, "silent for 0.8 s"),
    "malformed body": Row(Fault(kind=FaultKind.MALFORMED), ERROR, ERROR, "reading SGLang's answer"),
    "missing logprobs": Row(Fault(kind=FaultKind.MISSING_LOGPROBS), ERROR, ERROR, " 0 logprobs"),
    "short logprobs": Row(Fault(kind=FaultKind.SHORT_LOGPROBS), ERROR, ERROR, " logprobs"),
    "null logprobs": Row(Fault(kind=FaultKind.NAN_LOGPROBS), ERROR, ERROR, "no logprob for the id"),
    "NaN logprobs": Row(Fault(kind=FaultKind.NAN_LITERAL), ERROR, ERROR, "NaN among its numbers"),
    "misaligned logprobs": Row(Fault(kind=FaultKind.MISALIGNED_LOGPROBS), ERROR, ERROR, "with the logprob of the id"),
    "id outside the vocabulary": Row(Fault(kind=FaultKind.OUT_OF_VOCABULARY), ERROR, ERROR, "outside the vocabulary"),
    "nothing to replay": Row(Fault(kind=FaultKind.NO_REPLAY), ERROR, ERROR, "no `routed_experts`"),
    "abort, empty": Row(Fault(kind=FaultKind.ABORT), UNAFFECTED, ERROR, "no answer within"),
    "abort, partial": Row(Fault(kind=FaultKind.ABORT, tokens=PARTIAL), UNAFFECTED, UNAFFECTED, ""),
}


class Played(NamedTuple):
    """A rollout that was played against the stand-in, and what it left."""

    trajectory: Trajectory
    session: ScriptedSession
    server: SglangServer


async def play(plan: Any, timeouts: Timeouts, limits: Limits, server_tokens: int = 32768) -> Played:
    """One rollout under `plan` of faults. Nothing is left: no task, no request, no connection."""
    results = [
        ToolResult(name="act", content=(TextBlock(text="ok"),), finished=turn == TURNS) for turn in range(1, TURNS + 1)
    ]
    session = ScriptedSession(results)
    job = RolloutSpec(task=TASK, rollout_id="k", limits=limits)
    async with (
        leaving_no_task(),
        asyncio.timeout(HANGS),
        SglangServer(model, faults=plan, context_tokens=server_tokens) as server,
    ):
        payload = {"return_routed_experts": True}
        async with SglangEngine(server.url, context_tokens=server_tokens, payload=payload, timeouts=timeouts) as engine:
            trajectory = await rollout(job, session=session, renderer=RENDERER, engine=engine)
        await server.until_running(0)
        for _ in range(1000):
            if not server.connections:
                break
            await asyncio.sleep(0.01)
        assert server.connections == 0
    assert (session.opened, session.closed) == (1, 1)
    return Played(trajectory, session, server)


def trained(trajectory: Trajectory) -> list[int]:
    return [
        token
        for datum in to_data(trajectory, reward=1.0)
        for token, mask in zip(datum.response, datum.loss_mask, strict=True)
        if mask
    ]


def joined(actions: Sequence[Sequence[int]]) -> list[int]:
    return [token for ids in actions for token in ids]


@pytest.mark.parametrize("stays", [False, True], ids=["passes", "stays"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault(name: str, moment: str, stays: bool) -> None:
    row, at = FAULTS[name], MOMENTS[moment]
    expected = row.stays if stays else row.passes
    fault = row.fault
    if fault.kind is FaultKind.DOWN and not stays:
        fault = Fault(kind=FaultKind.DOWN, seconds=0.03)

    def plan(index: int) -> Fault | None:
        if index < at.request:
            return Fault(kind=FaultKind.ABORT, tokens=PARTIAL) if at.begun else None
        return fault if stays or index < at.request + 2 else None

    timeouts = Timeouts(read=0.8 if name == "hang" else HANGS, retry=0.05 if expected == ERROR else 5.0)
    limits = Limits(
        max_turns=TURNS, retry_cut_actions=False, turn_timeout=0.8 if name == "abort, empty" and stays else HANGS
    )
    trajectory, session, server = await play(plan, timeouts, limits)
    actions = [list(turn.action_ids) for turn in trajectory.turns]
    if expected == UNAFFECTED:
        assert (trajectory.stop_reason, trajectory.error) == (StopReason.FINISHED, "")
        assert actions == ANSWERS
        assert trained(trajectory) == joined(ANSWERS)
        assert [call.arguments["x"] for call in session.calls] == [1, 222, 33333]
    else:
        assert trajectory.stop_reason is StopReason.ERROR
        assert row.words in trajectory.error
        assert actions == [*ANSWERS[: at.turn], ANSWERS[at.turn][: at.begun]]
        assert not trajectory.trainable
        assert trained(trajectory) == []
        assert len(session.calls) == at.turn
    if expected == ERROR and fault.kind not in (FaultKind.DOWN, FaultKind.ABORT):
        attempts = server.received - at.request
        assert attempts >= 2 if row.retried else attempts == 1


# Budgets. What the rollout was shown and what it sampled, turn by turn, is the same in all of them.

LENGTHS = ["turn", "rollout", "context", "server"]
PLACES = {"one id short of the stop": -1, "exactly at the stop": 0, "before the first id": None}


@pytest.fixture(scope="module")
def shown() -> list[int]:
    """Return how many ids the engine is shown in each turn."""
    played = asyncio.run(play(lambda index: None, Timeouts(), Limits(max_turns=TURNS, retry_cut_actions=False)))
    return [len(request.body["input_ids"]) for request in played.server.requests]


def budget(length: str, turn: int, ids: int, shown: list[int]) -> tuple[Limits, int]:
    """Limits that leave `ids` to the action of `turn`, and the server's own context."""
    before = sum(map(len, ANSWERS[:turn]))
    tokens = {"turn": ids, "rollout": before + ids, "context": shown[turn] + ids}
    if length == "server":  # SGLang keeps two ids back
        return Limits(max_turns=TURNS, retry_cut_actions=False), shown[turn] + ids + 2
    chosen: dict[str, Any] = {f"{length}_tokens": tokens[length]}
    return Limits(max_turns=TURNS, retry_cut_actions=False, **chosen), 32768


def counted_off(length: str, limits: Limits, server_tokens: int, shown: list[int]) -> tuple[list[list[int]], int]:
    """The actions that the budgets leave, and how many of them are complete and acted on."""
    actions: list[list[int]] = []
    for turn, said in enumerate(ANSWERS):
        spent = sum(map(len, actions))
        context = limits.context_tokens - shown[turn]
        if length == "server":  # SGLang keeps two ids back, and takes no prompt that leaves less than seven
            context = server_tokens - shown[turn] - 2 if server_tokens - shown[turn] >= 7 else 0
        room = min(limits.turn_tokens, limits.rollout_tokens - spent, context)
        if room < 1:
            return actions, turn
        actions.append(said[:room])
        if room < len(said):
            return actions, turn
    return actions, TURNS


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("length", LENGTHS)
async def test_a_length(length: str, moment: str, place: str, shown: list[int]) -> None:
    at, offset = MOMENTS[moment], PLACES[place]
    ids = 0 if offset is None else len(ANSWERS[at.turn]) + offset
    if length == "turn" and offset is None:
        ids = 1  # a turn without any id cannot be asked for
    limits, server_tokens = budget(length, at.turn, ids, shown)

    def plan(index: int) -> Fault | None:
        return Fault(kind=FaultKind.ABORT, tokens=PARTIAL) if at.begun and index == 0 else None

    trajectory, session, _ = await play(plan, Timeouts(retry=0.05), limits, server_tokens)
    actions, acted = counted_off(length, limits, server_tokens, shown)
    assert [list(turn.action_ids) for turn in trajectory.turns if turn.action_ids] == actions
    assert len(session.calls) == acted
    assert trajectory.stop_reason is (StopReason.FINISHED if acted == TURNS else StopReason.MAX_TOKENS)
    assert trajectory.error == ""
    assert trained(trajectory) == joined(actions)
    if offset == 0:
        assert acted > at.turn
    else:
        assert acted <= at.turn


def test_the_table_names_every_fault_of_the_stand_in() -> None:
    assert {row.fault.kind for row in FAULTS.values()} == set(FaultKind)
