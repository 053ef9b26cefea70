"""The stand-in for SGLang on a thread: its logprobs are those of the checkpoint that it was told to load last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache

from orl_testing import Fault, SglangServer
from orl_trl.canary import logprobs_under
from orl_trl.sglang_control import SglangControl
from transformers import PreTrainedModel, Qwen3ForCausalLM


@contextmanager
def served(faults: tuple[Fault, ...] = ()) -> Generator[tuple[SglangServer, SglangControl]]:
    server = SglangServer(lambda _ids, _sampling: range(20, 84), faults=faults)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    @cache
    def loaded(_count: int) -> PreTrainedModel:
        return Qwen3ForCausalLM.from_pretrained(server.weights[-1], dtype="float32")

    def score(prompt: list[int], ids: list[int]) -> list[float]:
        return logprobs_under(loaded(len(server.weights)), [*prompt, *ids])[len(prompt) - 1 :]

    async def serve() -> None:
        async with server:
            ended = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), ended))
            await ended.wait()

    server.score = score
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, ended = started.result(10)
    try:
        yield server, SglangControl(server.url)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
