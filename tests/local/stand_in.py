"""The stand-ins for SGLang and vLLM on a thread, with the weights that it was sent last, and a rank in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from orl_local.engine.control import Control
from orl_local.engine.served_engine import ServedEngine
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.vllm_control import VllmControl
from orl_local.engine.weights import SharedWeights
from orl_local.planning import Planned, planned
from orl_local.policy import LocalPolicy
from orl_local.rank import Rank
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import Run
from orl_rollout.training.course import Course, Record
from orl_testing import Fault, SglangServer, VllmServer
from orl_testing.sglang.checksums import fused_checksums
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, Qwen3ForCausalLM

from tests.local.fakes import Player

Weights = dict[str, Tensor]
Tamper = Callable[[Weights], Weights]
LAYER = "model.layers.{}.mlp.down_proj.weight"


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
    """The stand-in with the weights that it was sent. `tamper` is what goes wrong with them on the way.

    `asked` is called at each request for ids.
    """

    tamper: Tamper = staticmethod(untouched)
    shows = True  # its checksums
    asked: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(self._ids, faults=faults)
        self.states: list[Weights] = []

    def _ids(self, *_: object) -> Sequence[int]:
        self.asked()
        return range(20, 84)

    @property
    def state(self) -> Weights:
        return self.states[-1]

    def load(self, folder: str) -> None:
        self.weights.append(folder)
        self.states.append(self.tamper(load_file(Path(folder) / "model.safetensors")))
        if self.shows:
            weights = {name: weight.contiguous().view(torch.uint8).numpy() for name, weight in self.state.items()}
            self.checksums = (fused_checksums({name: weight.tobytes() for name, weight in weights.items()}),)


class LoadedVllm(VllmServer, Loaded):
    """The stand-in for vLLM with the weights that it was sent."""


CONTROLS: tuple[type[Control], ...] = (SglangControl, VllmControl)


@contextmanager
def served(faults: tuple[Fault, ...] = (), kind: type[Control] = SglangControl) -> Generator[tuple[Loaded, Any]]:
    """Serve an engine of this kind; yield it and what controls it."""
    server = LoadedVllm(faults) if kind is VllmControl else Loaded(faults)
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
        yield server, kind(server.url)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


class Direct:
    """The weights of a model of this process; see `Worker`."""

    def __init__(self, model: Any, *, keep: bool = False) -> None:
        self.weights = SharedWeights(model, keep=keep)

    async def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.weights, name)(*arguments)

    def stop(self) -> None:
        pass


class Near:
    """The rank of a run on threads of this process; see `Worker`."""

    def __init__(self, run: Run, plan: Planned | None = None) -> None:
        self.plan = plan or planned(run)
        self.rank = Rank(self.plan, interrupt.check)
        self.rank.place()

    async def call(self, name: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(getattr(self.rank, name), *arguments)

    def stop(self) -> None:
        pass

    async def train(self, run: Run, engine: ServedEngine, player: Player) -> None:
        """Train as a run with SGLang does, but for the process of the rank."""
        policy, record = LocalPolicy(self, engine, ahead=self.plan.schedule.ahead), Record(run, (), {}, lambda *_: None)
        async with engine:
            await Course(run, self.plan.schedule, policy, player, record).run()


def update(near: Near, size: float = 0.01) -> None:
    with torch.no_grad():
        for weight in near.rank.model.parameters():
            if weight.requires_grad:
                weight.add_(size * torch.randn_like(weight))
