"""The stand-in for SGLang on a thread: its logprobs and checksums are those of the checkpoint that it was sent last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from orl_testing import Fault, SglangServer
from orl_testing.sglang.checksums import fused_checksums
from orl_trl.engine.sglang_control import SglangControl
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, Qwen3ForCausalLM

Weights = dict[str, Tensor]
Tamper = Callable[[Weights], Weights]


def untouched(weights: Weights) -> Weights:
    return weights


def logprobs_under(model: PreTrainedModel, ids: Sequence[int]) -> list[float]:
    """Return the logprob of each of `ids` but the first under `model`, without dropout."""
    model.eval()
    with torch.no_grad():
        row = torch.tensor([list(ids)], device=model.device)
        scores = torch.log_softmax(model(input_ids=row).logits[0, :-1].float(), dim=-1)
        return scores.gather(1, row[0, 1:, None])[:, 0].tolist()


class Loaded(SglangServer):
    """The stand-in with the weights that it was sent. `tamper` is what goes wrong with them on the way."""

    tamper: Tamper = staticmethod(untouched)
    shows = True  # its checksums

    def load(self, folder: str) -> None:
        self.weights.append(folder)
        self.state = self.tamper(load_file(Path(folder) / "model.safetensors"))
        if self.shows:
            weights = {name: weight.contiguous().view(torch.uint8).numpy() for name, weight in self.state.items()}
            self.checksums = (fused_checksums({name: weight.tobytes() for name, weight in weights.items()}),)


@contextmanager
def served(faults: tuple[Fault, ...] = ()) -> Generator[tuple[Loaded, SglangControl]]:
    server = Loaded(lambda _ids, _sampling: range(20, 84), faults=faults)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    @cache
    def loaded(_count: int) -> PreTrainedModel:
        model = Qwen3ForCausalLM.from_pretrained(server.weights[-1], dtype="float32")
        model.load_state_dict(server.state, strict=False)
        return model

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
