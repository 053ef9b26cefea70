"""`orl doctor` on a running engine, an SGLang server or router: reachable, which model, how much context, law L1.

One id is sampled through the client that rollouts use, so what passes here is what a rollout relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.errors import EngineError, boundary
from orl_rollout.http import safe_json
from orl_rollout.http.client import HttpClient, UnsafeAnswer, read
from orl_rollout.sglang.client import Patience, SglangEngine

from orl_launcher.doctor.report import Page, Verdict

if TYPE_CHECKING:
    from orl_core.config import RunConfig

ANY_IDS = (1,)  # every vocabulary has this one
ANSWER_BYTES = 1 << 24  # of what a server says of itself


class _Worker(Struct, frozen=True, kw_only=True):  # unknown fields are allowed: the shape is not ours
    url: str
    is_healthy: bool = False


def check_engine(page: Page, config: RunConfig, url: str, ids: Sequence[int]) -> None:
    """Ask the engine at `url` for itself, then for one id that continues `ids`; where there are none, any id."""
    url = url.rstrip("/")
    advice = "start the server, or name its address without a path: --engine http://HOST:PORT"
    about = page.await_(url, lambda: _ask(url), advice=advice)
    if about is None:
        return
    _say_about(page, config, url, about)

    async def sample() -> str:
        return await _sample(page, config, url, ids or ANY_IDS)

    sampled = page.await_(url, sample)
    if sampled is not None:
        page.say(Verdict.OK, f"{url}: {sampled}")


async def _ask(url: str) -> dict[str, Any]:
    """What the server says of itself; a router, of its workers, and one of these of itself.

    Raises:
        EngineError: it is not up, or is a router without a healthy worker.
    """
    with boundary(EngineError, "asking whether it is up"):
        async with HttpClient(url) as http:
            async with http.request("GET", "/health", headers={}) as answer:
                if answer.status != 200:
                    raise EngineError(f"GET /health: HTTP {answer.status}")
            about = await _fields_of(http, "model_info", "server_info")
            if "model_path" in about:
                return about
            workers = msgspec.convert((await _fields_of(http, "workers")).get("workers", []), list[_Worker])
            healthy = [worker.url for worker in workers if worker.is_healthy]
            if workers and not healthy:
                raise EngineError(f"a router, and none of its {len(workers)} workers is healthy")
            told = {"workers": f"a router, {len(healthy)} of {len(workers)} workers healthy"} if workers else {}
        with suppress(aiohttp.ClientError, ValueError):  # a worker need not be within this machine's reach
            async with HttpClient(next(iter(healthy), url)) as http:
                told |= await _fields_of(http, "model_info", "server_info")
        return {**about, **told}


async def _fields_of(http: HttpClient, *names: str) -> dict[str, Any]:
    """Return the JSON objects under these paths, in one; what is not there is left out."""
    found: dict[str, Any] = {}
    for name in names:
        async with http.request("GET", f"/{name}", headers={}) as answer:
            if answer.status == 200:
                found |= _fields(await read(answer, ANSWER_BYTES))
    return found


def _fields(answer: bytes) -> dict[str, Any]:
    try:
        found: object = safe_json.decode(answer)
    except (UnsafeAnswer, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _say_about(page: Page, config: RunConfig, url: str, about: dict[str, Any]) -> None:
    model, named = about.get("model_path"), config.trainer.model
    version = about.get("weight_version")
    told = ["up", *([about["workers"]] if "workers" in about else [])]
    told += [f"serves {model}"] if model else []
    told += [f"weights `{version}`"] if version else []
    page.say(Verdict.OK, f"{url}: {', '.join(told)}")
    if isinstance(model, str) and named and PurePosixPath(model).name.lower() != PurePosixPath(named).name.lower():
        page.say(Verdict.WARNING, f"{url}: it serves {model}, and the tokenizer is that of {named}: are they the same?")
    held, wanted = about.get("context_length"), config.rollout.context_tokens
    if not isinstance(held, int):
        page.say(Verdict.UNCHECKED, f"{url}: it does not say how long its context is; {wanted} ids are asked for")
    elif held < wanted:
        advice = "lower rollout.context_tokens, or start the server with a longer --context-length"
        page.say(
            Verdict.FAILED, f"{url}: its context holds {held} ids, and the configuration asks for {wanted}: {advice}"
        )
    else:
        page.say(Verdict.OK, f"{url}: its context holds {held} ids, and {wanted} are asked for")


async def _sample(page: Page, config: RunConfig, url: str, ids: Sequence[int]) -> str:
    patience = Patience(connect=min(10.0, page.seconds), retry=0.001)
    sampling = {"max_new_tokens": 1, "temperature": 1.0}
    async with SglangEngine(url, context_tokens=config.rollout.context_tokens, patience=patience) as engine:
        generation = await engine.generate(ids, sampling, key="orl-doctor")
    if len(generation.ids) != 1:
        raise EngineError(f"one id was asked for, and {len(generation.ids)} came ({generation.finish_reason})")
    return (
        f"id {generation.ids[0]} sampled after {len(ids)} ids, with its logprob {generation.logprobs[0]:.3f} (law L1)"
    )
