"""The engine at an address, whichever it is: SGLang or vLLM.

It asks once who owns the models that the server lists, when the first ids are wanted: the server may still start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

import msgspec
from msgspec import Struct, structs
from orl_core.errors import EngineRefused
from orl_core.trajectory import Generation

from orl_rollout.engine_connection import Connection, Timeouts
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine

MODELS = "/v1/models"
MODELS_BYTES = 1 << 22
_TIMEOUTS = Timeouts()


class _Model(Struct, frozen=True, kw_only=True):
    owned_by: str = "sglang"


class _Models(Struct, frozen=True, kw_only=True):
    data: list[_Model] = []


async def owner_at(connection: Connection) -> str:
    """Return who owns the first model that the server lists; "" if it lists none, "sglang" without a list.

    Raises:
        EngineError: the server does not answer in time.
    """
    try:
        body = await connection.ask("GET", MODELS, MODELS_BYTES)
    except EngineRefused:
        return "sglang"
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "sglang"
    return models[0].owned_by if models else ""


class RecognisedEngine:
    """The engine at `url`, used as `async with`; one object per event loop. Arguments are those of `SglangEngine`."""

    def __init__(self, url: str, *, context_tokens: int, timeouts: Timeouts = _TIMEOUTS) -> None:
        self._url, self._context_tokens, self._timeouts = url, context_tokens, timeouts
        self._connection = Connection(url, timeouts)
        self._life = AsyncExitStack()
        self._engine: SglangEngine | VllmEngine | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as a client that is not open."""
        settings = {"context_tokens": self._context_tokens, "timeouts": self._timeouts}
        return partial(RecognisedEngine, self._url, **settings), ()

    async def __aenter__(self) -> Self:
        await self._life.enter_async_context(self._connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._life.aclose()

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`; see `Engine.generate`."""
        engine = self._engine or await self._recognised()
        if engine is None:  # the server lists no model yet: this decides nothing
            async with SglangEngine(self._url, context_tokens=self._context_tokens, timeouts=self._timeouts) as guess:
                return await guess.generate(ids, sampling, key=key)
        return await engine.generate(ids, sampling, key=key)

    async def _recognised(self) -> SglangEngine | VllmEngine | None:
        """Ask the server which engine it is. Return None if it lists no model."""
        owner = await owner_at(self._connection)
        if self._engine is None and owner:  # another request may have been faster
            kind = VllmEngine if owner == "vllm" else SglangEngine
            answered = structs.replace(self._timeouts, first=self._timeouts.retry)
            engine = kind(self._url, context_tokens=self._context_tokens, timeouts=answered)
            self._engine = await self._life.enter_async_context(engine)
        return self._engine
