"""What the rollouts of one process share, and those of one of its event loops: tokenizer, journal, breaker; clients.

A trainer runs several event loops in one process and kills it without ceremony, so clients are kept for each loop and
never need to be closed. The module reads the trainer's arguments by the names that trainers share, and knows nothing
of its samples.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from orl_core.config import RunConfig, decode_config, load_config
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.stack import SharedState
from orl_rollout.sglang.client import SglangEngine


class Run:
    """What is known of a run, also where it never came to a Process."""

    def __init__(self) -> None:
        self.ended = ""  # why it is over
        self.stripped = False  # whether its rollouts are lists of samples
        self.batches = 0  # the training batches up to the latest that was logged


class Process(SharedState):
    """State shared by the event loops of a trainer's worker, which is closed when the process ends."""

    def __init__(self, config: RunConfig, checkpoint: str, group_size: int, folder: str) -> None:
        super().__init__(config, checkpoint, folder, group_size)
        atexit.register(self.close)
        self._began = False

    def step(self, batch: int, *, evaluation: bool) -> int:
        """The step of the run as its history counts, from 1, where the trainer plays its batch `batch`.

        An evaluation is that of the batch before it; trainers give the one before all training a batch's number too.
        """
        self._began = self._began or not evaluation
        return batch + self._began


class Loop:
    """What the rollouts of one event loop share."""

    def __init__(self, process: Process, engine: SglangEngine, client: OpenRewardClient) -> None:
        self.process = process
        self.engine = engine
        self.closing = AsyncExitStack()
        self.client = client
        self.runtime = process.runtime(client)

    async def open(self) -> None:
        """Open the clients; they live as long as the loop."""
        await self.closing.enter_async_context(self.client)
        await self.closing.enter_async_context(self.engine)


_runs: defaultdict[str, Run] = defaultdict(Run)
_one_at_a_time = threading.Lock()  # two loops begin on two threads, and share one process
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, bool], asyncio.Task[Loop]]] = WeakKeyDictionary()


def run_of(args: Any) -> Run:
    """The run that the trainer's arguments, or a copy of them, belong to. A trainer's process has one."""
    return _runs[repr((getattr(args, "orl_folder", ""), getattr(args, "orl_config", None)))]


async def this_loop(args: Any, payload: Mapping[str, Any], *, evaluation: bool) -> Loop:
    """The clients of the current event loop, opened by the first rollout that asks.

    An evaluation has clients of its own: its context may be longer, and a trainer that evaluates on engines of their
    own names another router in its arguments. `payload` is what the trainer wants in every request to its engines,
    beside what the engine's client itself asks.

    Raises:
        OrlError: they cannot be opened; a ConfigError where the configuration says so.
    """
    running = asyncio.get_running_loop()
    openings = _loops.setdefault(running, {})
    key = (f"http://{args.sglang_router_ip}:{args.sglang_router_port}", evaluation)
    if key not in openings:
        openings[key] = running.create_task(_open(args, *key, payload))
    return await asyncio.shield(openings[key])


async def _open(args: Any, url: str, evaluation: bool, payload: Mapping[str, Any]) -> Loop:
    with boundary(OrlError, "starting rollouts"):
        with _one_at_a_time:
            process = _process(*_settings(args))
        context = context_tokens(args, evaluation=evaluation) or process.config.rollout.context_tokens
        engine = SglangEngine(url, context_tokens=context, payload=payload)
        loop = Loop(process, engine, OpenRewardClient(process.config))
        await loop.open()
    return loop


async def aclose() -> None:
    """Close the clients of the current event loop. A host that kills its process need not call it."""
    for opening in _loops.pop(asyncio.get_running_loop(), {}).values():
        with suppress(OrlError):  # what never opened is not closed
            await (await opening).closing.aclose()


def config_of(args: Any) -> RunConfig:
    """The configuration that the trainer's arguments carry, or the file that they or the environment name.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    given = getattr(args, "orl_config", None)
    if given is not None and not isinstance(given, str):
        return decode_config(given, "orl_config")
    path = given or os.environ.get("ORL_CONFIG") or os.environ.get("TRAIN_CONFIG")
    if not path:
        raise ConfigError("no configuration: pass `orl_config` in --custom-config-path, or set ORL_CONFIG")
    return load_config(path)


def context_tokens(args: Any, *, evaluation: bool) -> int | None:
    """How long prompt and response may be together, as the trainer's arguments say."""
    name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
    return getattr(args, name, None) or getattr(args, "rollout_max_context_len", None)


def _settings(args: Any) -> tuple[str, str, int, str]:
    """The configuration as JSON, the checkpoint, the group's size and the run's folder, as the arguments say."""
    config = msgspec.json.encode(config_of(args)).decode()
    return config, args.hf_checkpoint, args.n_samples_per_prompt, getattr(args, "orl_folder", "")


@functools.cache
def _process(config: str, checkpoint: str, group_size: int, folder: str) -> Process:
    return Process(decode_config(msgspec.json.decode(config), "orl_config"), checkpoint, group_size, folder)
