"""slime's `--custom-generate-function-path orl_slime.generate.generate`: one rollout, written into slime's Sample.

It never imports slime: the host has loaded itself before it calls us. An exception that left `generate` would end the
job; only the breaker's may, and that of a configuration which cannot be played.
"""

from __future__ import annotations

import functools
import logging
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.breaker import Breaker

from orl_slime.compare import is_task, offer, task_of
from orl_slime.process import ENDED, context_tokens, this_loop
from orl_slime.samples import fail, fill, split

logger = logging.getLogger("orl")


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play the task of `sample.metadata` and return `sample`, its per-token fields set anew.

    Where reasoning is stripped, a list is returned, also of one sample: one for each datum, sharing `rollout_id`. slime
    takes lists or samples of a run, not both. An evaluation is one sample, that of the last turns, so that it counts
    once. A row that is no task of orl is played by slime's own `generate`.

    Status: FINISHED is COMPLETED; MAX_TURNS and MAX_TOKENS are TRUNCATED; TIMEOUT is TRUNCATED and removed; ABORTED is
    ABORTED (a clean restart later); ERROR is FAILED, removed, reward 0.0. `remove_sample` keeps the loss off what does
    not train.

    Raises:
        RunAborted: too many rollouts end in ERROR. slime, fully async, drops the group and calls again: then samples
            fail at once, and `orl_slime.log.log_rollout` raises it.
        ConfigError: no configuration, a row that is no task, or `--partial-rollout` where reasoning is stripped.
    """
    if hasattr(args, ENDED):
        fail(sample)
        return sample
    try:
        return await _played(args, sample, sampling_params, evaluation)
    except OrlError as fault:
        setattr(args, ENDED, str(fault))
        raise


async def _played(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool) -> Any:
    loop = await this_loop(args)
    stripped = loop.process.config.thinking == "strip"
    if stripped and getattr(args, "partial_rollout", False):
        raise ConfigError("`thinking: strip` makes several samples of a rollout, which `--partial-rollout` cannot keep")
    if not is_task(sample):
        await _by_slime(args, sample, sampling_params, loop.process.breaker)
        return [sample] if stripped else sample
    task = task_of(sample)
    outcome = await loop.runtime.play(
        task,
        key=getattr(sample, "session_id", None) or uuid.uuid4().hex,
        engine=loop.engine,
        sampling=sampling_params,
        context_tokens=context_tokens(args, evaluation),
        evaluation=evaluation,
        stopped=functools.partial(_aborted, args),
    )
    compared = loop.process.config.group_reward.mode != "off" and not evaluation
    offer(sample, outcome.trajectory if compared and outcome.trajectory.trains else None)
    if stripped:
        return split(sample, outcome, text_of=loop.process.tokenizer.decode, evaluation=evaluation)
    fill(sample, outcome, text_of=loop.process.tokenizer.decode)
    return sample


async def _by_slime(args: Any, sample: Any, sampling_params: Mapping[str, Any], breaker: Breaker) -> None:
    """Let slime play a row that is a plain prompt; its reward model scores it afterwards (`orl_slime.reward.reward`).

    Raises:
        RunAborted: too many rollouts end in ERROR.
        ConfigError: slime is not the host.
    """
    host = sys.modules.get("slime.rollout.sglang_rollout")
    if host is None:
        raise ConfigError(f"row {sample.index}: its metadata is no task of `orl prepare`, and slime is not the host")
    error = ""
    try:
        with boundary(OrlError, "slime's own generate"):
            await host.generate(args, sample, dict(sampling_params))
    except OrlError as fault:
        error = f"row {sample.index}: {fault}"
        logger.warning("%s", error)
        fail(sample)
    breaker.saw(error)


def _aborted(args: Any) -> bool:
    """slime's own abort flag, where slime is the host."""
    host = sys.modules.get("slime.rollout.sglang_rollout")
    return bool(host and host.GenerateState(args).aborted)
