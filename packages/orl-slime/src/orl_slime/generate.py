"""slime's `--custom-generate-function-path orl_slime.generate.generate`: one rollout, written into slime's Sample.

It never imports slime, which has loaded itself before it calls us.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any

from orl_cluster.hooks.generate import Host
from orl_cluster.hooks.generate import generate as generate_in
from orl_cluster.hooks.samples import mark_failed
from orl_cluster.hooks.worker import run_of
from orl_core.errors import RunAborted

from orl_slime import replay
from orl_slime.hooks import SLIME


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play the task of `sample.metadata` and return `sample`, or a list where reasoning is stripped.

    See `orl_cluster.hooks.generate.generate` for what becomes of it and what is raised. slime, fully async, drops the
    group of an exception and calls again: then samples fail at once, and `log_rollout` raises the exception.
    """
    run = run_of(args)
    if run.ended:
        if evaluation:
            raise RunAborted(run.ended)
        mark_failed(sample)
        return [sample] if run.stripped else sample
    host = Host(
        args=args,
        evaluation=evaluation,
        payload={"return_routed_experts": True} if replay.routing(args) and not evaluation else {},
        batch=await _batch(sample),
        routing_key=getattr(sample, "session_id", None),
        loses_lists=_loses_lists(args),
        aborted=partial(SLIME.aborted, args),
        complete=partial(replay.write, args),
        play=partial(SLIME.play, args),
    )
    return await generate_in(host, sample, sampling_params)


async def _batch(sample: Any) -> int | None:
    """Return slime's number of the batch; None if it does not say.

    Its versions keep it in different places, and all tell it to a hook of `--rollout-sample-hook-path`.
    """
    query = Namespace(rollout_sample_hook_path=[f"{__name__}.note_batch"], batch=None)
    if hooks := sys.modules.get("slime.rollout.sample_hooks"):
        await hooks.apply_rollout_sample_hooks(query, sample)
    return query.batch


def note_batch(query: Namespace, sample: Any, *, rollout_id: int | None) -> None:
    """Write the number that slime tells its hooks into `query`."""
    del sample
    query.batch = rollout_id


def _loses_lists(args: Any) -> str:
    """Return the option under which slime cannot keep several samples of a rollout; "" if none is set."""
    path = getattr(args, "rollout_function_path", None) or ""
    return f"--rollout-function-path {path}" if "fully_async" in path else ""
