"""The stand-in for Tinker: a fault of its own is final and has its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
from orl_core.config import TrainerConfig
from orl_core.errors import EngineError
from orl_testing.tinker.server import TinkerServer
from orl_tinker.adapters import Adapters
from tinker import AdamParams, ModelInput, SamplingParams

IDS = ModelInput.from_ints([5, 6])


async def _sampling(server: TinkerServer, adapters: Adapters) -> None:
    server.tamper = lambda answer: answer.nothing  # pyright: ignore[reportAttributeAccessIssue]
    await adapters.sample(IDS, SamplingParams(max_tokens=2))


async def _training(server: TinkerServer, adapters: Adapters) -> None:
    bare: dict[str, Any] = {"target_tokens": [6, 7]}
    await adapters.update([tinker.Datum(model_input=IDS, loss_fn_inputs=bare)], AdamParams())


async def _handling(server: TinkerServer, adapters: Adapters) -> None:
    server.draws = None  # pyright: ignore[reportAttributeAccessIssue]
    await adapters.sample(IDS, SamplingParams(max_tokens=2))


@pytest.mark.parametrize(
    ("work", "fault"), [(_sampling, "AttributeError"), (_training, "KeyError"), (_handling, "AttributeError")]
)
async def test_fault_of_the_stand_in_ends_at_once(
    checkpoint: Path, work: Callable[[TinkerServer, Adapters], Awaitable[None]], fault: str
):
    async with TinkerServer() as server:
        trainer = TrainerConfig(seed=1, sections={"tinker": {"tinker_url": server.url, "lora_rank": 2}})
        async with Adapters(trainer, str(checkpoint), "", 600.0) as adapters:
            await adapters.refresh()
            with pytest.raises(EngineError) as raised:
                await asyncio.wait_for(work(server, adapters), 20)
    text = str(raised.value)
    assert "Traceback" in text
    assert fault in text
    assert "server.py" in text or "model.py" in text
