"""Replay in miles' training of the engine's choices: routed experts, and the tokens that sparse attention saw.

The engine returns either for the whole sequence at once, so that the last generation of a datum has all of it, in
base64 of int32. miles reads a row of -1 as padding: a sample that failed has such rows, in the width of the others.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

from orl_core import EngineError, Generation, boundary
from orl_rollout.memory import config_of, experts_of

_FIELDS = {"routed_experts": "rollout_routed_experts", "indexer_topk": "rollout_indexer_topk"}
_OPTIONS = {"routed_experts": "use_rollout_routing_replay", "indexer_topk": "use_rollout_indexer_replay"}

_widths: dict[str, tuple[int, ...]] = {}  # layers and choices, as the engine last returned them


def payload(args: Any) -> dict[str, Any]:
    """Return the fields of a training request; miles' engines for evaluation alone return nothing to replay."""
    return {f"return_{name}": True for name in _replayed(args)}


def write(args: Any, sample: Any, generations: Sequence[Generation]) -> None:
    """Write into `sample` the fields that miles replays; padding if it failed, without `generations`."""
    import numpy as np

    rows = len(sample.tokens) - 1
    for name in _replayed(args):
        if generations:
            with boundary(EngineError, f"reading `{name}`, as the engine returned it"):
                numbers = _decoded(name, generations[-1].extras, rows, args)
            _widths[name] = numbers.shape[1:]
        else:
            width = _widths.get(name) or (_routed(args) if name == "routed_experts" else (1, 1))
            numbers = np.full((rows, *width), -1, dtype=np.int32)
        setattr(sample, _FIELDS[name], numbers)


def pad(args: Any, samples: Sequence[Any]) -> None:
    """Give the padding of a whole batch its siblings' width, which was a guess if a sample failed early."""
    import numpy as np

    for field in (_FIELDS[name] for name in _replayed(args)):
        having = [sample for sample in samples if getattr(sample, field) is not None]
        width = max((getattr(sample, field).shape[1:] for sample in having), key=math.prod, default=())
        for sample in having:
            rows = getattr(sample, field)
            if sample.remove_sample and rows.shape[1:] != width:
                setattr(sample, field, np.full((len(rows), *width), -1, dtype=np.int32))


def _replayed(args: Any) -> list[str]:
    return [name for name, option in _OPTIONS.items() if getattr(args, option, False)]


def _routed(args: Any) -> tuple[int, int]:
    """Return the layers, and the experts that a token chooses: an option of Megatron, which FSDP has not."""
    chosen = getattr(args, "moe_router_topk", None)
    return args.num_layers, chosen or experts_of(config_of(args.hf_checkpoint))[1]


def _decoded(name: str, extras: Mapping[str, Any], rows: int, args: Any) -> Any:
    import numpy as np

    layers = args.num_layers if name == "routed_experts" else extras["indexer_topk_num_layers"]
    numbers = np.frombuffer(base64.b64decode(extras[name]), dtype=np.int32)
    if not rows or not numbers.size or numbers.size % (rows * layers):
        raise EngineError(f"{name}: {numbers.size} numbers for {rows} ids and {layers} layers")
    return numbers.reshape(rows, layers, -1)
