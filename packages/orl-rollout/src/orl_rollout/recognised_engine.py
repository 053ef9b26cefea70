"""The engine at an address, whichever it is: SGLang or vLLM.

It asks once who owns the models that the server lists, when the first ids are wanted: the server may still start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError, EngineRefused, boundary
from orl_core.trajectory import Generation

from orl_rollout.engine_connection import Connection, Timeouts
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine

MODELS = "/v1/models"
MODELS_BYTES = 1 << 22
_TIMEOUTS = Timeouts()


class Served(Struct, frozen=True, kw_only=True):
    """A model that a server lists. `root` is its path, `max_model_len` its context in ids."""

    id: str = ""
    owned_by: str = ""
    root: str | None = None
    max_model_len: int | None = None


class _Models(Struct, frozen=True, kw_only=True):
    data: list[Served] = []


async def model_at(connection: Connection) -> Served:
    """Return the first model that the server lists; an empty one if it lists none.

    Raises:
        EngineError: the server does not answer in time.
    """
    try:
        body = await connection.ask("GET", MODELS, MODELS_BYTES)
    except EngineRefused:
        return Served()
    with boundary(EngineAnswerError, f"reading {MODELS}"):
        return next(iter(msgspec.json.decode(body, type=_Models).data), Served())


class RecognisedEngine:
    """The engine at `url`, used as `async with`; one object per event loop. Arguments are those of `SglangEngine`."""

    def __init__(self, url: str, *, context_tokens: int, timeouts: Timeouts = _TIMEOUTS) -> None:
        self._url, self._context_tokens, self._timeouts = url, context_tokens, timeouts
        self._connection = Connection(url, timeouts)
        self._life = AsyncExitStack()
        self._engine: SglangEngine | VllmEngine | None = None

    async def __aenter__(self) -> Self:
        await self._life.enter_async_context(self._connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._life.aclose()

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`; see `Engine.generate`."""
        if self._engine is None:
            owner = (await model_at(self._connection)).owned_by
            kind = VllmEngine if owner == "vllm" else SglangEngine
            engine = kind(self._url, context_tokens=self._context_tokens, timeouts=self._timeouts)
            self._engine = await self._life.enter_async_context(engine)
        return await self._engine.generate(ids, sampling, key=key)
