"""Replay in slime's training of the engine's choices: routed experts, and the nucleus of a top-p below 1.

slime's own `Sample.append_response_tokens` (from its v0.3.1 on) reads what its SGLang returns; here it is fed one
generation after the other, and the loss mask is then put back as the datum has it. slime asserts these fields of every
sample of a batch, so that a sample that failed has them too, for its own two ids.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from orl_core.datum import Datum
from orl_core.errors import EngineError, boundary
from orl_core.trajectory import Generation

_ROUTED = "routed_experts"
_FIELDS = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts")


def routing(args: Any) -> bool:
    """Tell whether slime replays the routing of a mixture of experts."""
    return bool(getattr(args, "use_rollout_routing_replay", False))


def write(args: Any, sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
    """Write into `sample`, filled from `datum` (None: it failed), the fields that slime replays.

    Raises:
        EngineError: what the engine returned does not fit its ids.
    """
    nucleus = getattr(args, "rollout_top_p", 1.0) != 1.0
    if not nucleus and not routing(args):
        return
    for name in _FIELDS:
        setattr(sample, name, None)
    if datum is not None:
        with boundary(EngineError, "reading what the engine returned to replay"):
            _append(args, sample, datum, generations)
        return
    if nucleus:
        sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = [], [0] * (sample.response_length + 1)
    if routing(args):  # not of zeros alone, which slime takes for a capture that is missing
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
