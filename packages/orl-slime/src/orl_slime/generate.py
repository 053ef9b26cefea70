"""slime's `--custom-generate-function-path orl_slime.generate.generate`: one rollout, written into slime's Sample.

It works on any object with the fields of slime's Sample and never imports slime: the host has loaded itself before it
calls us. slime runs several event loops in one process and kills it without ceremony, so clients are kept for each loop
and never need to be closed. An exception that left `generate` would end the job; only the breaker's may.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import sys
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from orl_core.config import RunConfig, decode_config
from orl_core.datum import Datum
from orl_core.errors import ConfigError
from orl_core.render import Renderer
from orl_core.trajectory import StopReason
from orl_rollout.breaker import Breaker
from orl_rollout.journal import Journal
from orl_rollout.metrics import measure
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.outcome import Outcome
from orl_rollout.runtime import Runtime
from orl_rollout.sglang import SglangEngine
from orl_rollout.tokenizer import load_tokenizer
from orl_rollout.upload import Uploader

from orl_slime.compare import config_of, offer, task_of
from orl_slime.log import MEASURE

_STATUS = {
    StopReason.FINISHED: "COMPLETED",
    StopReason.MAX_TURNS: "TRUNCATED",
    StopReason.MAX_TOKENS: "TRUNCATED",
    StopReason.TIMEOUT: "TRUNCATED",
    StopReason.ABORTED: "ABORTED",
    StopReason.ERROR: "FAILED",
}


class _Process:
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


class _Loop:
    """What the rollouts of one event loop share."""

    def __init__(self, process: _Process, engine: SglangEngine, client: OpenRewardClient) -> None:
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


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[_Loop]] = WeakKeyDictionary()


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play the task of `sample.metadata` and return `sample`, its per-token fields set anew.

    Where reasoning is stripped, a list is returned, also of one sample: one for each datum, sharing `rollout_id`. slime
    takes lists or samples of a run, not both. An evaluation is one sample, that of the last turns, so that it counts
    once.

    Status: FINISHED is COMPLETED; MAX_TURNS and MAX_TOKENS are TRUNCATED; TIMEOUT is TRUNCATED and removed; ABORTED is
    ABORTED (a clean restart later); ERROR is FAILED, removed, reward 0.0. `remove_sample` keeps the loss off what does
    not train.

    Raises:
        RunAborted: too many rollouts end in ERROR.
        ConfigError: no configuration, a row that is no task, or `--partial-rollout` where reasoning is stripped.
    """
    loop = await _this_loop(args)
    stripped = loop.process.config.thinking == "strip"
    if stripped and getattr(args, "partial_rollout", False):
        raise ConfigError("`thinking: strip` makes several samples of a rollout, which `--partial-rollout` cannot keep")
    task = task_of(sample)
    outcome = await loop.runtime.play(
        task,
        key=getattr(sample, "session_id", None) or uuid.uuid4().hex,
        engine=loop.engine,
        sampling=sampling_params,
        context_tokens=_context(args, evaluation),
        evaluation=evaluation,
        stopped=functools.partial(_aborted, args),
    )
    compared = loop.process.config.group_reward.mode != "off" and not evaluation
    offer(sample, outcome.trajectory if compared and outcome.trajectory.trains else None)
    sample.metadata[MEASURE] = msgspec.to_builtins(measure(outcome))
    if stripped:
        return split(sample, outcome, text_of=loop.process.tokenizer.decode, evaluation=evaluation)
    fill(sample, outcome, text_of=loop.process.tokenizer.decode)
    return sample


def fill(sample: Any, outcome: Outcome, *, text_of: Any) -> None:
    """Write `outcome` into `sample`. What does not train is well-formed all the same: mask, logprobs and reward."""
    _write(sample, outcome.data[0] if outcome.data else None, outcome, text_of)
    results = [result for turn in outcome.trajectory.turns for result in turn.results]
    sample.non_generation_time = sum(result.seconds for result in results)


def split(sample: Any, outcome: Outcome, *, text_of: Any, evaluation: bool = False) -> list[Any]:
    """Write `outcome` into `sample` and copies of it, one for each datum, the first of them `sample` itself."""
    fill(sample, outcome, text_of=text_of)
    if evaluation:
        _write(sample, outcome.data[-1] if outcome.data else None, outcome, text_of)
        return [sample]
    sample.rollout_id = sample.index
    samples = [sample]
    for datum in outcome.data[1:]:
        sibling = copy.copy(sample)
        sibling.metadata = dict(sample.metadata)
        offer(sibling, None)
        sibling.non_generation_time = 0.0
        _write(sibling, datum, outcome, text_of)
        samples.append(sibling)
    return samples


def _write(sample: Any, datum: Datum | None, outcome: Outcome, text_of: Any) -> None:
    prompt, response = (datum.prompt, datum.response) if datum else ((0,), (0,))
    sample.tokens = [*prompt, *response]
    sample.response_length = len(response)
    sample.response = text_of(response) if datum else ""
    sample.loss_mask = list(datum.loss_mask) if datum else [0]
    sample.rollout_log_probs = list(datum.logprobs) if datum else [0.0]
    sample.weight_versions = list(datum.weight_versions) if datum else []
    sample.reward = outcome.reward
    sample.remove_sample = not (datum and datum.trains)
    sample.status = getattr(type(sample).Status, _STATUS[outcome.trajectory.stop_reason])


def _aborted(args: Any) -> bool:
    """slime's own abort flag, where slime is the host."""
    host = sys.modules.get("slime.rollout.sglang_rollout")
    return bool(host and host.GenerateState(args).aborted)


def _context(args: Any, evaluation: bool) -> int | None:
    name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
    return getattr(args, name, None) or getattr(args, "rollout_max_context_len", None)


async def _this_loop(args: Any) -> _Loop:
    """The clients of the current event loop, opened by the first rollout that asks."""
    running = asyncio.get_running_loop()
    opening = _loops.get(running)
    if opening is None:
        opening = _loops[running] = running.create_task(_open(args))
    return await asyncio.shield(opening)


async def _open(args: Any) -> _Loop:
    process = _process(*_settings(args))
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    context = _context(args, evaluation=False) or process.config.rollout.context_tokens
    loop = _Loop(process, SglangEngine(url, context_tokens=context), OpenRewardClient(process.config))
    await loop.open()
    return loop


async def aclose() -> None:
    """Close the clients of the current event loop. A host that kills its process need not call it."""
    opening = _loops.pop(asyncio.get_running_loop(), None)
    if opening is not None:
        await (await opening).closing.aclose()


def _settings(args: Any) -> tuple[str, str, int, str]:
    """The configuration as JSON, the checkpoint, the group's size and the run's folder, as slime's arguments say."""
    config = msgspec.json.encode(config_of(args)).decode()
    return config, args.hf_checkpoint, args.n_samples_per_prompt, getattr(args, "orl_folder", "")


@functools.cache
def _process(config: str, checkpoint: str, group_size: int, folder: str) -> _Process:
    return _Process(decode_config(msgspec.json.decode(config), "orl_config"), checkpoint, group_size, folder)
