"""One process that holds the weights: it loads, trains, saves and sends them.

Without a server it is this process, whose main thread belongs to torch. With SGLang or vLLM it is a child of the run's
process, which imports no torch and is no part of a GPU's memory: commands and rows go through a pipe, weights never do.
A child ends with its parent. With several GPUs there is a child for each. They meet at their pipes before they add
gradients, so that none waits in a collective for one that is late or dead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.edge.children import pipe_of_parent
from orl_rollout.edge.interrupt import SIGNALS, Interrupted
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.logs import keep_out
from orl_rollout.run_folder.checkpoint import lasting_name
from orl_rollout.training.rows import Row
from torch import Tensor, distributed

from orl_local.checkpoints import STATE, note, whole
from orl_local.engine.engine_plan import EngineChoice
from orl_local.engine.local_model import leads, load_model, on_cpu, on_device, sharded
from orl_local.engine.lora import load_adapter, with_adapters
from orl_local.engine.served_engine import ABORT, GO, HERE, STOP
from orl_local.engine.weights import Bucket, SharedWeights, policy_of, save_policy, sglang_handles, vllm_handles
from orl_local.learner import ALONE, Learner, Peers
from orl_local.options import own_options
from orl_local.planning import Planned


def handles_of(engine: EngineChoice, *, sharded: bool) -> Callable[[Bucket], str] | None:
    """Return what makes handles for `engine`. None for a vLLM that is not on the GPU of the rank that sends, alone."""
    if engine.engine != "vllm":
        return sglang_handles
    return None if sharded or engine.apart or engine.each > 1 else vllm_handles


class Rank(SharedWeights):
    """The weights of one run. `check` and `peers` as in Learner."""

    def __init__(self, plan: Planned, check: Callable[[], None], peers: Peers = ALONE) -> None:
        self._plan, self._check, self._peers = plan, check, peers
        self._loaded: Any = load_model(plan.base, frozen=plan.settings.lora_rank is not None)
        handles = handles_of(plan.engine, sharded=plan.sharded)
        super().__init__(keep=plan.schedule.ahead, frees=plan.releases, handles=handles)

    def place(self) -> int:
        """Move the weights to the device, with adapters and optimizer. Return the number of parameters.

        Raises:
            ConfigError: the checkpoint cannot be continued.
        """
        plan, settings, start = self._plan, self._plan.settings, self._plan.start
        folder, model, place = Path(plan.name), self._loaded, sharded if plan.sharded else on_device
        parameters = int(model.num_parameters())
        torch.manual_seed(settings.seed)  # for new adapters
        if settings.lora_rank:
            model = with_adapters(model, settings.lora_rank)
            if start:
                load_adapter(model, folder)
        model, first = place(model), None
        if settings.kl_coef and not settings.lora_rank:  # KL is measured from the weights that training began with
            first = place(load_model((start and start.model) or plan.base))
        self.learner = Learner(model, settings, self._check, first, self._peers)
        if start:
            with boundary(ConfigError, f"reading {folder / STATE}"):
                state = torch.load(folder / STATE, map_location="cpu", mmap=plan.sharded, weights_only=True)
                self.learner.restore(state["optimizer"], state["schedule"])
        self.model = model
        return parameters

    def update(self, rows: list[Row], step: int) -> dict[str, float]:
        """See `Learner.update`."""
        return self.learner.update(rows, step)

    def save(self, folder: Path, step: int) -> None:
        """Write weights and states after `step` steps into `folder`, once all of it is on disk.

        Raises:
            OrlError: it cannot be written. Nothing of it is left.
        """
        plan, model = self._plan, self.model
        policy, optimizer = policy_of(model), self.learner.optimizer.state_dict()
        if plan.sharded:  # before anything is written: a full disk must not leave other ranks in a collective
            optimizer["state"] = {key: on_cpu(model, one.items()) for key, one in optimizer["state"].items()}
        if not leads(model):
            return
        with whole(folder, own_options(plan.run.config.trainer).save_total_limit) as fresh:
            save_policy(model, policy, plan.name, plan.run.config.chat_template, fresh)
            torch.save({"optimizer": optimizer, "schedule": self.learner.schedule.state_dict()}, fresh / STATE)
            note(fresh, folder, plan.start.model if plan.start else lasting_name(plan.name), plan.order, step)


class Met(Peers):
    """Rank `number` of `count`, on the GPU of this number. They find each other by a new file at `meeting`."""

    def __init__(
        self, number: int, count: int, meeting: str, pipe: Connection[Any, Any], *, sharded: bool = False
    ) -> None:
        self.number, self.count, self._pipe, self.sharded = number, count, pipe, sharded
        os.environ |= {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        if torch.cuda.is_available():
            torch.cuda.set_device(number)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=number, world_size=count)

    def any(self, word: bool) -> bool:
        """See Peers. Ranks wait for each other here, on the CPU, and not in the middle of a layer."""
        words = torch.tensor(int(word))
        if self.sharded:
            distributed.all_reduce(words, distributed.ReduceOp.MAX)
        return bool(words)

    def add(self, trained: Sequence[Tensor], sums: Tensor) -> None:
        """See Peers. All ranks continue once the parent has heard of each of them; sharded gradients are sums already.

        STOP is for ranks that still compute: one of them fails then, and the parent aborts the others.
        """
        if self.sharded:
            distributed.all_reduce(sums)
            return
        for one in trained:  # before the gate: a rank without memory must not leave the others in a collective
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad
        self._pipe.send(HERE)
        while (word := self._pipe.recv()[0]) != GO:
            if word == ABORT:
                raise OrlError("another rank failed")
        shared: list[Any] = [sums, *(one.grad for one in trained)]
        for work in [distributed.all_reduce(one, async_op=True) for one in shared]:
            work.wait()


def main() -> None:
    """Serve the parent at the other end of the pipe until it closes the pipe.

    Each call has one answer: what the method returns or raises. The first call brings the plan.
    """
    pipe = cast("Connection[Any, Any]", Connection(pipe_of_parent().detach()))

    def check() -> None:
        if peers.any(pipe.poll()):
            raise Interrupted(SIGNALS[0])

    def begin(plan: Planned, number: int, count: int, meeting: str) -> None:
        nonlocal rank, peers
        keep_out(Scrubber.of(plan.run.config))
        peers = Met(number, count, meeting, pipe, sharded=plan.sharded) if count > 1 else ALONE
        rank = Rank(plan, check, peers)

    rank: Rank | None = None
    peers = ALONE
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            if name in (STOP, ABORT):  # it came too late
                continue
            try:
                with boundary(OrlError, "a bug in orl"):
                    answer = getattr(rank, name)(*arguments) if rank else begin(*arguments)
            except OrlError as fault:
                answer = type(fault)(str(fault))
            except Interrupted:
                answer = asyncio.CancelledError()
            pipe.send(answer)


if __name__ == "__main__":
    main()
