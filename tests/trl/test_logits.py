"""The logits of a micro-batch are never whole: TRL's fused head computes them in tiles, with the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trl.kernels.chunked_logprob
import trl.trainer.utils
from orl_trl.run_plan.gpu_memory import TILE_TOKENS, TILE_WIDTH
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

TEMPERATURE = 0.7
IDS = torch.arange(3 * 20).reshape(3, 20) * 7 % 600


def whole(hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [N], of all logits at once."""
    logprobs = torch.log_softmax((hidden @ head.T).float() / TEMPERATURE, -1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(1)


def tiled(hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    apply: Any = trl.kernels.chunked_logprob.ChunkedLogProbFunction.apply
    width = trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE
    return apply(hidden, head, None, targets, TEMPERATURE, width, None, 1.0, ("entropy",))[:2]


def test_tiles_are_those_that_the_estimate_counts():
    assert trl.kernels.chunked_logprob.TOKEN_CHUNK_SIZE == TILE_TOKENS
    assert trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE == TILE_WIDTH


def peak(compute: Any, ids: int, vocabulary: int) -> int:
    """The most bytes beside the inputs, forward and backward. No memory is really taken."""
    with FakeTensorMode():
        hidden, head = (torch.empty(size, 64, requires_grad=True) for size in (ids, vocabulary))
        targets = torch.zeros(ids, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(hidden, head, targets)
        with tracker:
            logprobs, _ = compute(hidden, head, targets)
            logprobs.sum().backward()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return int(snapshot["Total"]) - 4 * 64 * (ids + vocabulary) - 8 * ids


@pytest.mark.slow
def test_memory_of_logits_does_not_grow_with_ids():
    few, many = (peak(tiled, ids, 151_936) for ids in (8192, 32_768))
    assert many - few < 10 * 4 * 64 * (32_768 - 8192)  # hidden states and a few numbers of each id
    assert many < peak(whole, 8192, 151_936) / 4
