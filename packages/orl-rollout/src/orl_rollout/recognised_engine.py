"""The engine at an address, whichever it is: SGLang or vLLM.

It asks once who owns the models that the server lists, when the first ids are wanted: the server may still start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs
from orl_core.errors import EngineRefused
from orl_core.trajectory import Generation

from orl_rollout.engine_connection import EngineClient, Timeouts
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine

MODELS = "/v1/models"
MODELS_BYTES = 1 << 22
Kind = TypeVar("Kind", bound=EngineClient)


class _Model(Struct, frozen=True, kw_only=True):
    owned_by: str = "sglang"


class _Models(Struct, frozen=True, kw_only=True):
    data: list[_Model] = []


class RecognisedEngine(EngineClient):
    """The engine at `url`, used as `async with`; one object per event loop."""

    _engine: SglangEngine | VllmEngine | None = None

    async def __aexit__(self, *exc: object) -> None:
        if self._engine is not None:
            await self._engine.__aexit__(*exc)
        await super().__aexit__(*exc)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`; see `Engine.generate`."""
        engine = self._engine or await self._recognised()
        if engine is None:  # the server lists no model yet: this decides nothing
            async with self._as(SglangEngine, self._timeouts) as guess:
                return await guess.generate(ids, sampling, key=key)
        return await engine.generate(ids, sampling, key=key)

    async def _recognised(self) -> SglangEngine | VllmEngine | None:
        """Ask the server which engine it is. Return None if it lists no model."""
        owner = await self.owner()
        if self._engine is None and owner:  # another request may have been faster
            kind = VllmEngine if owner == "vllm" else SglangEngine
            answered = structs.replace(self._timeouts, first=self._timeouts.retry)
            self._engine = await self._as(kind, answered).__aenter__()
        return self._engine

    def _as(self, kind: type[Kind], timeouts: Timeouts) -> Kind:
        return kind(self._url, context_tokens=self.context_tokens, payload=self.payload, timeouts=timeouts)

    async def owner(self) -> str:
        """Return who owns the first model that the server lists; "" if it lists none, "sglang" without a list.

        Raises:
            EngineError: the server does not answer in time.
        """
        try:
            models = msgspec.json.decode(await self.ask("GET", MODELS, MODELS_BYTES), type=_Models).data
        except (EngineRefused, msgspec.DecodeError, UnicodeDecodeError):
            return "sglang"
        return models[0].owned_by if models else ""
