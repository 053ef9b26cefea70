"""Checks of a running engine, SGLang, vLLM or a router: reachable, same model, long enough context, law L1.

One id is sampled through the client that rollouts use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import msgspec
from orl_core import EngineError, RunConfig, boundary
from orl_rollout.edge.http import HttpClient, UnsafeAnswer, decode, read
from orl_rollout.engine_connection import Timeouts
from orl_rollout.recognised_engine import RecognisedEngine

from orl_launcher.doctor.report import Report

ANY_IDS = (1,)  # every vocabulary has this one
ANSWER_SECONDS = 10.0  # for a first answer of a running engine
ANSWER_BYTES = 1 << 24  # of what a server says of itself


def check_engine(page: Report, config: RunConfig, url: str, ids: Sequence[int]) -> None:
    """Ask the engine at `url` about itself, then for one id that continues `ids`, or any id if there are none."""
    url = url.rstrip("/")
    advice = "Start the server, or give its address without a path: --engine http://HOST:PORT"
    about = page.await_(url, lambda: _ask(url), advice=advice)
    if about is None:
        return
    _say_about(page, config, url, about)
    if sampled := page.await_(url, lambda: _sample(page, config, url, ids or ANY_IDS)):
        page.say("ok", f"{url}: {sampled}")


async def check_answers(url: str) -> None:
    """Ask the engine at `url` for its health, before a run prepares anything."""
    with boundary(EngineError, f"--engine {url}: asking whether it is up"):
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            HttpClient(url) as http,
            http.request("GET", "/health", headers={}) as answer,
        ):
            status = answer.status
    if status >= 500:  # an engine behind a gateway need not have this path
        raise EngineError(f"--engine {url}: GET /health: HTTP {status}. Wait until it has started")


async def _ask(url: str) -> dict[str, Any]:
    """Return the facts that the server tells of itself and of its model."""
    with boundary(EngineError, "asking whether it is up"):
        async with HttpClient(url) as http:
            async with http.request("GET", "/health", headers={}) as answer:
                if answer.status != 200:
                    raise EngineError(f"GET /health: HTTP {answer.status}")
            about = await _fields_of(http, "model_info", "server_info")
            if "model_path" not in about:
                models: list[dict[str, Any]] = (await _fields_of(http, "v1/models")).get("data", [])
                for model in models[:1]:
                    about |= {"model_path": model.get("root"), "context_length": model.get("max_model_len")}
        return about


async def _fields_of(http: HttpClient, *names: str) -> dict[str, Any]:
    """Return the fields of the JSON objects under these paths, as far as there are any."""
    fields: dict[str, Any] = {}
    for name in names:
        async with http.request("GET", f"/{name}", headers={}) as answer:
            if answer.status == 200:
                body = await read(answer, ANSWER_BYTES)
                with suppress(UnsafeAnswer, ValueError, msgspec.ValidationError):
                    fields |= msgspec.convert(decode(body), dict[str, Any])
    return fields


def _say_about(page: Report, config: RunConfig, url: str, about: dict[str, Any]) -> None:
    model, named = about.get("model_path"), config.trainer.model
    version = about.get("weight_version")
    facts = ("up", model and f"serves {model}", version and f"weights `{version}`")
    page.say("ok", f"{url}: {', '.join(filter(None, facts))}")
    if isinstance(model, str) and named and PurePosixPath(model).name.lower() != PurePosixPath(named).name.lower():
        page.say("warning", f"{url}: serves {model}, but the tokenizer is that of {named}. Check that they match")
    held, wanted = about.get("context_length"), config.context_tokens
    if not isinstance(held, int):
        page.say("not checked", f"{url}: does not report its context length. The run needs {wanted} ids")
    elif held < wanted:
        advice = "Lower rollout.context_tokens, or start the server with a longer --context-length"
        page.say("failed", f"{url}: its context holds {held} ids, but the run needs {wanted}. {advice}")
    else:
        page.say("ok", f"{url}: its context holds {held} ids, the run needs {wanted}")


async def _sample(page: Report, config: RunConfig, url: str, ids: Sequence[int]) -> str:
    timeouts = Timeouts(connect=min(10.0, page.seconds), retry=0.001)
    sampling = {"max_new_tokens": 1, "temperature": 1.0}
    async with RecognisedEngine(url, context_tokens=config.context_tokens, timeouts=timeouts) as engine:
        generation = await engine.generate(ids, sampling, key="orl-doctor")
    if len(generation.token_ids) != 1:
        raise EngineError(f"returned {len(generation.token_ids)} ids instead of 1 ({generation.finish_reason})")
    return (
        f"id {generation.token_ids[0]} sampled after {len(ids)} ids, with logprob {generation.logprobs[0]:.3f} (law L1)"
    )
