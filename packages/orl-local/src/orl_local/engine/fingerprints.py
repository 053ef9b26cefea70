"""Fingerprints of weights, computed where the weights are: in the trainer, and in a worker of vLLM.

vLLM's own checksums are SHA-256 on the CPU, 4 s for 1.7 billion parameters. A worker imports this: nothing but torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

SENT = torch.bfloat16  # the type of weights as they are sent
_CHUNK = 1 << 20  # elements that are hashed at once
_PRIME = 1_000_003


def fingerprints(weights: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Return a hash of each weight as it is sent, by name. One changed bit always changes it.

    Sums of bits times odd factors, modulo 2^64: linear, and computed where the weight is.
    """
    hashes = {name: _hash(weight) for name, weight in weights}
    values = [one.to(next(iter(hashes.values())).device) for one in hashes.values()]  # vLLM may keep some on the CPU
    return dict(zip(hashes, torch.stack(values).tolist(), strict=True)) if hashes else {}


def _hash(weight: Tensor) -> Tensor:
    """Return the hash of one weight as it is sent, int64 [], on its device. A contiguous weight is not copied."""
    factors = _factors(weight.device)
    total = factors.new_zeros(())
    for chunk in weight.reshape(-1).split(_CHUNK):
        bits = chunk.to(SENT).view(torch.int16) if chunk.is_floating_point() else chunk
        total = total * _PRIME + (bits.long() * factors[: chunk.numel()]).sum()
    return total


@cache
def _factors(device: torch.device) -> Tensor:
    """Return odd factors, int64 [_CHUNK]."""
    drawn = torch.randint(-(2**62), 2**62, (_CHUNK,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(device)


class Fingerprinted:
    """Gives a worker of vLLM its fingerprints (`--worker-extension-cls`)."""

    model_runner: Any

    def orl_fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each plain tensor of the weights of this worker, by name."""
        weights = self.model_runner.get_model().named_parameters()
        plain = ((name, one.data) for name, one in weights if type(one.data) is Tensor)
        return {name: f"{value:x}" for name, value in fingerprints(plain).items()}
