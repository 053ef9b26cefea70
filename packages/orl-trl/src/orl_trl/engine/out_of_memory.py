"""Recognize that the memory of the device ran out. Rollouts and training then continue in smaller batches."""

from __future__ import annotations

import torch
from accelerate.utils.memory import should_reduce_batch_size


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether the memory of the device ran out."""
    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)
