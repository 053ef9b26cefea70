"""slime's `--custom-generate-function-path orl_slime.generate.generate`: one rollout, written into slime's Sample.

It never imports slime, which has loaded itself before it calls us. slime replays the engine's choices in training:
routed experts, and the nucleus of a top-p below 1. Its `Sample.append_response_tokens` (from v0.3.1 on) reads what its
SGLang returns; here it is fed one generation after the other. slime asserts these fields of every sample of a batch,
so that a sample that failed has them too, for its own two ids.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from orl_cluster.hooks.generate import Host
from orl_cluster.hooks.generate import generate as generate_in
from orl_cluster.hooks.samples import mark_failed
from orl_cluster.hooks.worker import run_of
from orl_core import Datum, EngineError, Generation, RunAborted, boundary

from orl_slime.hooks import SLIME

_ROUTED = "routed_experts"
_FIELDS = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts")


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
        payload={"return_routed_experts": True} if _routing(args) and not evaluation else {},
        batch=await _batch(sample),
        routing_key=getattr(sample, "session_id", None),
        loses_lists=_loses_lists(args),
        aborted=partial(SLIME.aborted, args),
        complete=partial(_replayed, args),
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


def _routing(args: Any) -> bool:
    return bool(getattr(args, "use_rollout_routing_replay", False))


def _replayed(args: Any, sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
    """Write into `sample`, filled from `datum` (None: it failed), the fields that slime replays."""
    nucleus = getattr(args, "rollout_top_p", 1.0) != 1.0
    if not nucleus and not _routing(args):
        return
    for name in _FIELDS:
        setattr(sample, name, None)
    if datum is not None:
        with boundary(EngineError, "reading what the engine returned to replay"):
            _append(args, sample, datum, generations)
        return
    if nucleus:
        sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = [], [0] * (sample.response_length + 1)
    if _routing(args):  # not of zeros alone, which slime takes for a capture that is missing
        torch: Any = importlib.import_module("torch")  # slime 0.3.1 converts no list
        layers = [list(range(args.moe_router_topk)) for _ in range(args.num_layers)]
        sample.rollout_routed_experts = torch.tensor([layers for _ in sample.tokens[1:]], dtype=torch.int32)


def _append(args: Any, sample: Any, datum: Datum, generations: Sequence[Generation]) -> None:
    whole = [
        number for number, generation in enumerate(generations) if not generation.extras.get("routed_experts_start_len")
    ]
    sample.tokens, sample.response_length = list(datum.prompt), 0
    sample.loss_mask, sample.rollout_log_probs = [], []
    place = 0
    for number, generation in enumerate(generations):
        begins = datum.sampled.index(1, place)
        sample.append_response_tokens(args, tokens=datum.response[place:begins], trainable=False)
        place = begins + len(generation.token_ids)
        # A capture of the whole sequence takes the place of all before it: those need not be read.
        meta = (
            generation.extras if number >= whole[-1] else {k: v for k, v in generation.extras.items() if k != _ROUTED}
        )
        sample.append_response_tokens(
            args, tokens=generation.token_ids, log_probs=generation.logprobs, meta_info=meta, update_terminal_info=False
        )
    sample.loss_mask = list(datum.loss_mask)
