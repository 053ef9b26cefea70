"""The contract of an engine's client, one table for all: SGLang's and vLLM's, each against its stand-in on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from orl_core.errors import EngineAnswerError, EngineError, EngineRefused, EngineTimeout, EngineUnavailable
from orl_core.trajectory import Generation
from orl_rollout.engine_connection import Timeouts
from orl_rollout.loop.token_buffer import TokenBuffer
from orl_rollout.recognised_engine import RecognisedEngine
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine
from orl_testing import Fault, FaultKind, SglangServer, VllmServer, logprobs_of

from tests.kit.serving import ANSWER, HANGS, PROMPT, SAMPLING, leaving_no_task

Client = SglangEngine | VllmEngine | RecognisedEngine
ENGINES: dict[str, tuple[type[SglangServer], type[Client]]] = {
    "sglang": (SglangServer, SglangEngine),
    "vllm": (VllmServer, VllmEngine),
    "sglang, recognised": (SglangServer, RecognisedEngine),
    "vllm, recognised": (VllmServer, RecognisedEngine),
}
CONTEXT = 64


class Wire:
    """The server of one engine that always answers the same, and its client."""

    def __init__(self, name: str) -> None:
        self._server, self._client = ENGINES[name]

    @asynccontextmanager
    async def serving(
        self, *faults: Fault, timeouts: Timeouts | None = None, answer: Sequence[int] = ANSWER
    ) -> AsyncGenerator[tuple[SglangServer, Client]]:
        async with (
            leaving_no_task(),
            asyncio.timeout(HANGS),
            self._server(lambda ids, sampling: answer, faults=faults, context_tokens=CONTEXT) as server,
            self._client(server.url, context_tokens=CONTEXT, timeouts=timeouts or Timeouts(retry=5.0)) as engine,
        ):
            yield server, engine


@pytest.fixture(params=ENGINES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(request.param)


async def test_ids_logprobs_and_version_are_taken_exactly(wire: Wire) -> None:
    async with wire.serving() as (server, engine):
        server.weight_version = "7"
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    assert generation.token_ids == tuple(ANSWER)
    assert list(generation.logprobs) == logprobs_of(PROMPT, ANSWER)
    assert (generation.finish_reason, generation.weight_version) == ("stop", "7")
    assert generation.seconds > 0


FAULTS: dict[Fault, type[EngineError]] = {
    **{Fault(kind=FaultKind.STATUS, status=status): EngineUnavailable for status in (408, 429, 500, 503)},
    **{Fault(kind=FaultKind.STATUS, status=status): EngineRefused for status in (400, 401, 404, 413)},
    Fault(kind=FaultKind.RESET): EngineUnavailable,
    Fault(kind=FaultKind.RESET_MID_BODY): EngineUnavailable,
    Fault(kind=FaultKind.DOWN): EngineUnavailable,
    Fault(kind=FaultKind.HANG): EngineTimeout,
    Fault(kind=FaultKind.MALFORMED): EngineAnswerError,
    Fault(kind=FaultKind.MISSING_LOGPROBS): EngineAnswerError,
    Fault(kind=FaultKind.SHORT_LOGPROBS): EngineAnswerError,
    Fault(kind=FaultKind.NAN_LOGPROBS): EngineAnswerError,
    Fault(kind=FaultKind.NAN_LITERAL): EngineAnswerError,
    Fault(kind=FaultKind.MISALIGNED_LOGPROBS): EngineAnswerError,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.status}")
async def test_fault_has_the_class_of_its_cause(wire: Wire, fault: Fault) -> None:
    async with wire.serving(fault, timeouts=Timeouts(read=0.3, retry=0.02)) as (server, engine):
        with pytest.raises(FAULTS[fault]):
            await engine.generate(PROMPT, SAMPLING, key="a")
        assert server.received >= 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.STATUS, at=0, status=429),
        Fault(kind=FaultKind.STATUS, at=0, status=503),
        Fault(kind=FaultKind.RESET_MID_BODY, at=0),
        Fault(kind=FaultKind.DOWN, at=0, seconds=0.05),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
async def test_passing_fault_is_retried_with_the_same_request(wire: Wire, fault: Fault) -> None:
    async with wire.serving(fault) as (server, engine):
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    assert generation.token_ids == tuple(ANSWER)
    assert server.requests[1].body == server.requests[0].body


@pytest.mark.parametrize("tokens", [0, 2])
async def test_abort_returns_the_ids_so_far(wire: Wire, tokens: int) -> None:
    async with wire.serving(Fault(kind=FaultKind.ABORT, tokens=tokens)) as (_, engine):
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    assert (generation.token_ids, generation.finish_reason) == (tuple(ANSWER[:tokens]), "abort")


async def test_cancelling_aborts_the_request(wire: Wire) -> None:
    async with wire.serving(Fault(kind=FaultKind.HANG)) as (server, engine):
        request = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, key="a"))
        await server.until_running(1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await server.until_running(0)
        assert server.disconnected == 1


@pytest.mark.parametrize(("budget", "reason"), [(2, "length"), (16, "stop"), (None, "stop")])
async def test_length_and_stop_are_told_apart(wire: Wire, budget: int | None, reason: str) -> None:
    async with wire.serving() as (_, engine):
        generation = await engine.generate(PROMPT, {**SAMPLING, "max_new_tokens": budget}, key="a")
    assert (generation.token_ids, generation.finish_reason) == (tuple(ANSWER[:budget]), reason)


@pytest.mark.parametrize("size", range(CONTEXT - 9, CONTEXT + 2))
async def test_no_request_is_refused_for_its_length(wire: Wire, size: int) -> None:
    async with wire.serving(answer=range(100, 200)) as (server, engine):
        generation = await engine.generate([1] * size, {"max_new_tokens": 4096}, key="a")
    assert generation.finish_reason == "length"
    assert len(generation.token_ids) <= max(0, CONTEXT - size)
    assert bool(generation.token_ids) == bool(server.received)


@pytest.mark.parametrize("sampling", [{"temprature": 1.0}, {"n": 2}, {"max_new_tokens": 0}], ids=str)
async def test_parameter_that_cannot_be_obeyed_is_refused(wire: Wire, sampling: dict[str, Any]) -> None:
    async with wire.serving() as (server, engine):
        with pytest.raises(EngineRefused):
            await engine.generate(PROMPT, sampling, key="a")
        assert server.received == 0


async def test_next_turn_extends_the_ids_and_hits_the_cache(wire: Wire) -> None:
    buffer = TokenBuffer(PROMPT)
    async with wire.serving() as (server, engine):
        first = await engine.generate(buffer, SAMPLING, key="a")
        buffer.extend((*first.token_ids, 31, 32))
        second = await engine.generate(buffer, SAMPLING, key="a")
    (name,) = server.requests[1].body.keys() & {"input_ids", "token_ids"}
    assert server.requests[1].body[name] == [*PROMPT, *ANSWER, 31, 32]
    assert (first.cached_tokens, second.cached_tokens) == (0, len(PROMPT) + len(ANSWER))


async def test_parameters_of_the_loop_have_the_names_of_vllm() -> None:
    sampling = {"max_new_tokens": 4, "min_new_tokens": 9, "sampling_seed": 5, "no_stop_trim": True, "top_p": None}
    async with Wire("vllm").serving() as (server, engine):
        await engine.generate(PROMPT, {**sampling, "stop_token_ids": [2]}, key="rollout-1")
    assert server.requests[0].body == {
        "token_ids": PROMPT,
        "sampling_params": {
            "max_tokens": 4,
            "min_tokens": 4,
            "seed": 5,
            "stop_token_ids": [2],
            "skip_special_tokens": False,
            "detokenize": False,
            "logprobs": 0,
        },
    }
    assert server.requests[0].headers["x-session-id"] == "rollout-1"


async def test_logprobs_before_temperature_are_refused() -> None:
    async with Wire("vllm").serving() as (server, engine):
        assert isinstance(server, VllmServer)
        server.processed = False
        with pytest.raises(EngineAnswerError, match="--logprobs-mode processed_logprobs"):
            await engine.generate(PROMPT, SAMPLING, key="a")
        assert server.received == 0


async def test_weights_older_than_those_of_the_rollout_are_refused() -> None:
    async with Wire("vllm").serving() as (server, engine):

        async def sampled(version: str, key: str) -> Generation:
            server.weight_version = version
            return await engine.generate(PROMPT, SAMPLING, key=key)

        for version, key in (("9", "a"), ("10", "a"), ("3", "b"), ("default", "a")):
            assert (await sampled(version, key)).weight_version == version
        with pytest.raises(EngineAnswerError, match="weights 8"):
            await sampled("8", "a")


async def test_first_requests_share_one_engine() -> None:
    """Else the weights that each rollout began with would be forgotten."""
    async with Wire("vllm, recognised").serving() as (server, engine):
        server.weight_version = "5"
        keys = [str(number) for number in range(16)]
        await asyncio.gather(*(engine.generate(PROMPT, SAMPLING, key=key) for key in keys))
        server.weight_version = "4"
        for key in keys:
            with pytest.raises(EngineAnswerError):
                await engine.generate(PROMPT, SAMPLING, key=key)


async def test_server_without_a_model_is_asked_again() -> None:
    async with Wire("vllm, recognised").serving() as (server, engine):
        assert isinstance(server, VllmServer)
        server.lists = False
        with pytest.raises(EngineRefused):  # as SGLang would be asked
            await engine.generate(PROMPT, SAMPLING, key="a")
        server.lists = True
        assert (await engine.generate(PROMPT, SAMPLING, key="a")).token_ids == tuple(ANSWER)
