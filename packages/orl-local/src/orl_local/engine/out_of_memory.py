"""Recognize that the memory of the device ran out. Rollouts and training then continue in smaller batches."""

from __future__ import annotations

import gc

import torch

WORDS = ("out of memory", "ALLOC_FAILED", "can't allocate memory")  # of a GPU, its libraries, and a CPU


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether the memory of the device ran out."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in WORDS)


def clear_memory() -> None:
    """Free memory that nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
