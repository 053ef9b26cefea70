"""What the rollouts of one process share, and those of one of its event loops: tokenizer, journal, breaker; clients.

slime runs several event loops in one process and kills it without ceremony, so clients are kept for each loop and never
need to be closed. The module knows slime's arguments by name, and nothing of its samples.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from contextlib import AsyncExitStack, suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError, OrlError
from orl_core.render import Renderer
from orl_rollout.breaker import Breaker
from orl_rollout.journal import Journal
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime import Runtime
from orl_rollout.sglang import SglangEngine
from orl_rollout.tokenizer import load_tokenizer
from orl_rollout.upload import Uploader

from orl_slime.compare import config_of


class Process:
    """What all event loops of this process share. The journal is in the run's `folder`; there is none without one."""

    def __init__(self, config: RunConfig, checkpoint: str, group_size: int, folder: str) -> None:
        self.config = config
        self.tokenizer = load_tokenizer(checkpoint, thinking=bool(config.thinking))
        self.renderer = Renderer(self.tokenizer, system_prompt_template=config.system_prompt_template)
        folder = config.rollout.journal or folder
        self.journal = Journal(folder, config) if folder else None
        if folder:
            atexit.register(Uploader(folder, config).close)
        self.breaker = Breaker(max_error_rate=config.rollout.max_error_rate, group_size=group_size)


class Loop:
    """What the rollouts of one event loop share."""

    def __init__(self, process: Process, engine: SglangEngine, client: OpenRewardClient) -> None:
        self.process = process
        self.engine = engine
        self.closing = AsyncExitStack()
        self.client = client
        self.runtime = Runtime(
            process.config, renderer=process.renderer, client=client, journal=process.journal, breaker=process.breaker
        )

    async def open(self) -> None:
        """Open the clients; they live as long as the loop."""
        await self.closing.enter_async_context(self.client)
        await self.closing.enter_async_context(self.engine)


ENDED = "orl_ended"  # of slime's arguments: why this run is over, for a host that goes on after an exception

# What slime would train with only if every sample carried what the engine chose from, which orl does not hand on.
_REPLAYED = {"rollout_top_p": 1.0, "use_rollout_routing_replay": False}

_one_at_a_time = threading.Lock()  # two loops begin on two threads, and share one process
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Loop]] = WeakKeyDictionary()


async def this_loop(args: Any) -> Loop:
    """The clients of the current event loop, opened by the first rollout that asks."""
    running = asyncio.get_running_loop()
    opening = _loops.get(running)
    if opening is None:
        opening = _loops[running] = running.create_task(_open(args))
    return await asyncio.shield(opening)


async def _open(args: Any) -> Loop:
    for name, without in _REPLAYED.items():
        if (value := getattr(args, name, without)) != without:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} {value} has slime replay the engine's choices, which orl does not keep")
    with _one_at_a_time:
        process = _process(*_settings(args))
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    context = context_tokens(args, evaluation=False) or process.config.rollout.context_tokens
    loop = Loop(process, SglangEngine(url, context_tokens=context), OpenRewardClient(process.config))
    await loop.open()
    return loop


def context_tokens(args: Any, evaluation: bool) -> int | None:
    """How long prompt and response may be together, as slime's arguments say."""
    name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
    return getattr(args, name, None) or getattr(args, "rollout_max_context_len", None)


async def aclose() -> None:
    """Close the clients of the current event loop. A host that kills its process need not call it."""
    opening = _loops.pop(asyncio.get_running_loop(), None)
    if opening is not None:
        with suppress(OrlError):  # what never opened is not closed
            await (await opening).closing.aclose()


def _settings(args: Any) -> tuple[str, str, int, str]:
    """The configuration as JSON, the checkpoint, the group's size and the run's folder, as slime's arguments say."""
    config = msgspec.json.encode(config_of(args)).decode()
    return config, args.hf_checkpoint, args.n_samples_per_prompt, getattr(args, "orl_folder", "")


@functools.cache
def _process(config: str, checkpoint: str, group_size: int, folder: str) -> Process:
    return Process(decode_config(msgspec.json.decode(config), "orl_config"), checkpoint, group_size, folder)
