"""SglangEngine against the stand-in on loopback: one test for each thing that its docstrings promise."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
import warnings
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from orl_core.errors import EngineError
from orl_rollout.sglang import SglangEngine
from orl_rollout.testing import Fault, FaultKind, SglangServer, logprobs_of

PROMPT = [5, 6, 7]
ANSWER = [11, 12, 2]
SAMPLING = {"max_new_tokens": 16, "stop_token_ids": [2]}


@pytest.fixture(autouse=True)
async def leaves_no_task() -> AsyncGenerator[None]:
    before = asyncio.all_tasks()
    yield
    leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not (leaked and (await asyncio.wait(leaked, timeout=0.2))[1])


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orl_rollout.sglang.FIRST_PAUSE_SECONDS", 0.002)


@asynccontextmanager
async def serving(*faults: Fault, **options: Any) -> AsyncGenerator[tuple[SglangServer, SglangEngine]]:
    """A server that always answers ANSWER, and an engine with `options` on it."""
    options = {"context_tokens": 32768, "retry_seconds": 0.3} | options
    async with (
        asyncio.timeout(5),
        SglangServer(lambda ids, sampling: ANSWER, faults=faults) as server,
        SglangEngine(server.url, **options) as engine,
    ):
        yield server, engine


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Any], *, context_tokens: int = 100
) -> AsyncGenerator[SglangEngine]:
    """An engine on a server whose /generate is `handler`."""
    app = web.Application()
    app.router.add_post("/generate", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with asyncio.timeout(5), SglangEngine(url, context_tokens=context_tokens, retry_seconds=0.1) as engine:
            yield engine
    finally:
        await runner.cleanup()


def replying(**meta: Any) -> Callable[[web.Request], Any]:
    """A handler whose answer is well-formed but for what `meta` says; `output_ids` goes beside it."""
    output_ids = meta.pop("output_ids", [8])
    finish = {"type": "stop", "matched": 8}
    meta = {"finish_reason": finish, "output_token_logprobs": [[-0.5, 8, None]]} | meta

    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"text": "", "output_ids": output_ids, "meta_info": meta})

    return handler


# What is sent and what comes back


async def test_ids_and_logprobs_are_those_of_the_server() -> None:
    async with serving() as (server, engine):
        server.weight_version = "7"
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    assert generation.ids == tuple(ANSWER)
    assert list(generation.logprobs) == logprobs_of(PROMPT, ANSWER)
    assert (generation.finish_reason, generation.weight_version) == ("stop", "7")
    assert 0 < generation.seconds < 1


async def test_the_prefix_of_earlier_requests_counts_as_cached() -> None:
    async with serving() as (_, engine):
        first = await engine.generate(PROMPT, SAMPLING, key="a")
        second = await engine.generate([*PROMPT, *first.ids, 9], SAMPLING, key="a")
    assert (first.cached_tokens, second.cached_tokens) == (0, 6)


async def test_the_request_asks_for_exact_ids_and_never_for_prompt_logprobs() -> None:
    async with serving() as (server, engine):
        await engine.generate(PROMPT, {"temperature": 0.7, "stop": None, "max_new_tokens": 4}, key="a")
    assert server.requests[0].body == {
        "input_ids": PROMPT,
        "return_logprob": True,
        "sampling_params": {
            "temperature": 0.7,
            "max_new_tokens": 4,
            "no_stop_trim": True,
            "skip_special_tokens": False,
        },
    }


async def test_headers_payload_and_the_routing_key_reach_every_request() -> None:
    payload = {"lora_path": "adapter", "return_routed_experts": True}
    async with serving(headers={"Authorization": "Bearer k"}, payload=payload) as (server, engine):
        await engine.generate(PROMPT, SAMPLING, key="rollout-1")
        await engine.generate(PROMPT, SAMPLING, key="rollout-2")
    assert [request.headers["x-smg-routing-key"] for request in server.requests] == ["rollout-1", "rollout-2"]
    assert all(request.headers["authorization"] == "Bearer k" for request in server.requests)
    assert all(request.body["lora_path"] == "adapter" for request in server.requests)


async def test_what_a_trainer_replays_is_kept_as_it_came() -> None:
    async with serving(payload={"return_routed_experts": True}) as (_, engine):
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    experts = array("i")
    experts.frombytes(base64.b64decode(generation.extras["routed_experts"]))
    assert set(generation.extras) == {"routed_experts"}
    assert list(experts) == [5, 6, 7, 3, 4]


async def test_top_p_ids_and_the_indexer_are_replayed_too() -> None:
    replayed = {"top_p_token_ids": "AA==", "top_p_token_offsets": "AQ==", "indexer_topk": "Ag=="}
    async with answering(replying(**replayed, spec_verify_ct=3, weight_version=4)) as engine:
        generation = await engine.generate(PROMPT, {}, key="a")
    assert generation.extras == replayed
    assert generation.weight_version == "4"


async def test_a_body_of_several_megabytes_is_sent_without_a_warning() -> None:
    ids = list(range(1_000_000, 1_400_000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with answering(web_length, context_tokens=500_000) as engine:
            generation = await engine.generate(ids, {}, key="a")
    assert generation.ids == (8,)


async def web_length(request: web.Request) -> web.Response:
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
    assert size > 3_000_000
    return await replying()(request)


async def test_requests_in_flight_have_no_limit() -> None:
    async with serving(Fault(kind=FaultKind.HANG)) as (server, engine), asyncio.TaskGroup() as group:
        for number in range(150):
            group.create_task(engine.generate(PROMPT, SAMPLING, key=str(number)))
        await server.until_running(150)
        server.abort()


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    async with serving() as (_, engine):
        assert (await engine.generate(PROMPT, SAMPLING, key="a")).ids


async def test_outside_of_its_block_an_engine_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await SglangEngine("http://127.0.0.1:9", context_tokens=10).generate(PROMPT, {}, key="a")


# Budgets and parameters


@pytest.mark.parametrize(
    ("wanted", "sent"), [(None, 7), (100, 7), (7, 7), (5, 5)], ids=["none", "more", "exactly", "less"]
)
async def test_max_new_tokens_is_clamped_to_the_context(wanted: int | None, sent: int) -> None:
    async with serving(context_tokens=10) as (server, engine):
        await engine.generate(PROMPT, {"max_new_tokens": wanted, "min_new_tokens": 50}, key="a")
    assert server.requests[0].body["sampling_params"]["max_new_tokens"] == sent
    assert server.requests[0].body["sampling_params"]["min_new_tokens"] == sent


@pytest.mark.parametrize("prompt", [[], [1] * 10, [1] * 20], ids=["empty", "full", "over"])
async def test_without_room_nothing_is_sent(prompt: list[int]) -> None:
    async with serving(context_tokens=10) as (server, engine):
        with pytest.raises(EngineError, match=f"{len(prompt)} ids in a context of 10"):
            await engine.generate(prompt, SAMPLING, key="a")
    assert server.received == 0


async def test_a_budget_below_one_is_not_sent() -> None:
    async with serving() as (server, engine):
        with pytest.raises(EngineError, match="max_new_tokens is 0"):
            await engine.generate(PROMPT, {"max_new_tokens": 0}, key="a")
    assert server.received == 0


@pytest.mark.parametrize("name", ["seed", "include_stop_str_in_output", "n", "stop_strs"])
async def test_an_unknown_parameter_is_named_and_not_sent(name: str) -> None:
    async with serving() as (server, engine):
        with pytest.raises(EngineError, match=f"{name}$"):
            await engine.generate(PROMPT, {**SAMPLING, name: 1}, key="a")
    assert server.received == 0


async def test_every_parameter_of_slime_is_taken() -> None:
    sampling = {
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": -1,
        "max_new_tokens": 8,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "sampling_seed": 3,
        "custom_params": {"return_top_p_token_ids": True},
    }
    async with serving() as (_, engine):
        assert (await engine.generate(PROMPT, sampling, key="a")).ids == tuple(ANSWER)


# Endings


@pytest.mark.parametrize(("budget", "ids", "reason"), [(2, 2, "length"), (3, 3, "length"), (4, 3, "stop")])
async def test_length_and_stop_are_told_apart(budget: int, ids: int, reason: str) -> None:
    async with serving() as (_, engine):
        generation = await engine.generate(PROMPT, SAMPLING | {"max_new_tokens": budget}, key="a")
    assert (len(generation.ids), generation.finish_reason) == (ids, reason)


@pytest.mark.parametrize("tokens", [0, 2])
async def test_an_abort_keeps_what_was_sampled(tokens: int) -> None:
    async with serving(Fault(kind=FaultKind.ABORT, tokens=tokens)) as (_, engine):
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    assert generation.finish_reason == "abort"
    assert generation.ids == tuple(ANSWER[:tokens])
    assert list(generation.logprobs) == logprobs_of(PROMPT, ANSWER[:tokens])


@pytest.mark.parametrize("logprobs", [None, []])
@pytest.mark.parametrize("ids", [None, []])
async def test_an_abort_before_the_first_id_is_legal_in_every_shape(logprobs: Any, ids: Any) -> None:
    meta = {"finish_reason": {"type": "abort", "message": "Aborted"}, "output_token_logprobs": logprobs}
    async with answering(replying(**meta, output_ids=ids)) as engine:
        generation = await engine.generate(PROMPT, {}, key="a")
    assert (generation.ids, generation.finish_reason) == ((), "abort")


async def test_cancelling_disconnects_at_once() -> None:
    async with serving(Fault(kind=FaultKind.HANG)) as (server, engine):
        request = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, key="a"))
        await server.until_running(1)
        cancelled = time.monotonic()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await server.until_running(0)
        assert time.monotonic() - cancelled < 10
        assert server.disconnected == 1


async def test_cancelling_ends_a_pause_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orl_rollout.sglang.FIRST_PAUSE_SECONDS", 60.0)
    async with serving(Fault(kind=FaultKind.STATUS), retry_seconds=60) as (_, engine):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await engine.generate(PROMPT, SAMPLING, key="a")


# Faults: what is retried, and what is not


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(kind=FaultKind.STATUS, at=0, status=status) for status in (408, 429, 500, 502, 503, 504)),
        Fault(kind=FaultKind.RESET, at=0),
        Fault(kind=FaultKind.RESET_MID_BODY, at=0),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
async def test_a_passing_fault_is_retried_with_the_same_request(fault: Fault) -> None:
    async with serving(fault) as (server, engine):
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    assert generation.ids == tuple(ANSWER)
    assert [request.body for request in server.requests] == [server.requests[0].body] * 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.STATUS, status=503, message="The request queue is full."),
        Fault(kind=FaultKind.RESET),
        Fault(kind=FaultKind.RESET_MID_BODY),
    ],
    ids=lambda fault: fault.kind,
)
async def test_a_lasting_fault_ends_the_retries_in_time(fault: Fault) -> None:
    started = time.monotonic()
    async with serving(fault, retry_seconds=0.1) as (server, engine):
        with pytest.raises(EngineError, match="the last") as caught:
            await engine.generate(PROMPT, SAMPLING, key="a")
    assert server.received >= 2
    assert time.monotonic() - started < 20
    assert fault.kind is not FaultKind.STATUS or "HTTP 503: The request queue is full." in str(caught.value)


async def test_a_refused_connection_is_retried_until_the_server_is_there() -> None:
    port = free_port()
    async with asyncio.timeout(5), SglangEngine(f"http://127.0.0.1:{port}", context_tokens=100) as engine:
        request = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, key="a"))
        await asyncio.sleep(0.02)
        async with SglangServer([ANSWER], port=port):
            assert (await request).ids == tuple(ANSWER)


async def test_a_server_that_dies_and_comes_back_is_found_again() -> None:
    port = free_port()
    async with asyncio.timeout(5), SglangEngine(f"http://127.0.0.1:{port}", context_tokens=100) as engine:
        for _ in range(2):
            async with SglangServer([ANSWER], port=port):
                assert (await engine.generate(PROMPT, SAMPLING, key="a")).ids == tuple(ANSWER)
        async with SglangServer([ANSWER], faults=[Fault(kind=FaultKind.HANG, at=0)], port=port) as server:
            request = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, key="a"))
            await server.until_running(1)
        async with SglangServer([ANSWER], port=port):
            assert (await request).ids == tuple(ANSWER)


async def test_a_connection_that_a_server_closed_while_idle_is_replaced() -> None:
    """Two generations on a server that closes after each answer, without telling."""
    answers = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal answers
        answers += 1
        await request.read()
        response = await replying()(request)
        await response.prepare(request)
        await response.write_eof()
        assert request.transport is not None
        request.transport.close()
        return response

    async with answering(handler) as engine:
        for _ in range(3):
            assert (await engine.generate(PROMPT, {}, key="a")).ids == (8,)
    assert answers == 3


@pytest.mark.parametrize("status", [400, 401, 404, 413])
async def test_a_refusal_is_not_retried_and_carries_the_message(status: int) -> None:
    async with serving(Fault(kind=FaultKind.STATUS, status=status, message="too\nlong")) as (server, engine):
        with pytest.raises(EngineError, match=f"HTTP {status}: too long$"):
            await engine.generate(PROMPT, SAMPLING, key="a")
    assert server.received == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"", "no message"), (b"plain", "plain"), (b'{"error": 3}', '{"error": 3}'), (b"\xff" * 999, "\ufffd" * 300)],
)
async def test_the_message_of_any_error_body_is_one_bounded_line(body: bytes, message: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=400, body=body)

    async with answering(handler) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.generate(PROMPT, {}, key="a")
    assert str(caught.value).endswith(f"HTTP 400: {message}")


async def test_a_redirect_is_not_followed() -> None:
    async def handler(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with answering(handler) as engine:
        with pytest.raises(EngineError, match="HTTP 307"):
            await engine.generate(PROMPT, {}, key="a")


async def test_a_silent_server_is_given_up() -> None:
    async with serving(Fault(kind=FaultKind.HANG), read_seconds=0.05) as (server, engine):
        with pytest.raises(EngineError, match=r"silent for 0\.05 s"):
            await engine.generate(PROMPT, SAMPLING, key="a")
    assert server.received == 1


async def test_a_key_that_no_header_can_hold_is_an_engine_error() -> None:
    async with serving() as (server, engine):
        with pytest.raises(EngineError):
            await engine.generate(PROMPT, SAMPLING, key="a\r\nX-Other: 1")
    assert server.received == 0


# Law L1: what cannot be trusted is refused


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (FaultKind.MALFORMED, "reading SGLang's answer"),
        (FaultKind.MISSING_LOGPROBS, "no output_token_logprobs"),
        (FaultKind.SHORT_LOGPROBS, "3 ids and 2 logprobs"),
        (FaultKind.NAN_LOGPROBS, "no logprob for the id 2 at place 2"),
        (FaultKind.MISALIGNED_LOGPROBS, "the id 2 with the logprob of the id 3 at place 2"),
        (FaultKind.OUT_OF_VOCABULARY, "outside the vocabulary"),
    ],
)
async def test_an_answer_that_breaks_the_law_is_refused_once(kind: FaultKind, message: str) -> None:
    async with serving(Fault(kind=kind)) as (server, engine):
        with pytest.raises(EngineError, match=message):
            await engine.generate(PROMPT, SAMPLING, key="a")
    assert server.received == 1


async def test_an_abort_with_ids_but_without_logprobs_is_refused() -> None:
    finish = {"type": "abort", "message": "Aborted"}
    async with answering(replying(finish_reason=finish, output_token_logprobs=None)) as engine:
        with pytest.raises(EngineError, match="no output_token_logprobs"):
            await engine.generate(PROMPT, {}, key="a")


@pytest.mark.parametrize(
    "meta",
    [
        {"finish_reason": None},
        {"finish_reason": {"type": "error"}},
        {"output_token_logprobs": [[float("nan"), 8, None]]},
        {"output_token_logprobs": [[float("-inf"), 8, None]]},
        {"output_token_logprobs": [[-0.5, 8]]},
        {"output_token_logprobs": [["-0.5", 8, None]]},
        {"output_ids": None},
        {"output_ids": [8.5]},
        {"cached_tokens": None},
    ],
    ids=str,
)
async def test_an_answer_of_another_shape_is_refused(meta: dict[str, Any]) -> None:
    async with answering(replying(**meta)) as engine:
        with pytest.raises(EngineError):
            await engine.generate(PROMPT, {}, key="a")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
