"""A model in this process: how it is loaded, its device, and what happens when the memory of the device runs out.

Rollouts and training then continue in smaller batches.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
import transformers
from orl_core.errors import ConfigError, boundary
from orl_rollout.memory import GIB
from orl_rollout.tokenizer.pretrained import check_hub
from transformers import AutoModelForCausalLM, PreTrainedModel

from orl_local.settings import TINY

OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory")  # of a GPU, its libraries, and a CPU


def load_model(name: str, *, frozen: bool = False) -> PreTrainedModel:
    """Load the causal language model `name` on the CPU: in fp32, or in bf16 if it is `frozen` and there is a GPU.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with boundary(ConfigError, f"loading the model `{name}`"):
        check_hub(name, "config.json")
        dtype = "bfloat16" if frozen and torch.cuda.is_available() else "float32"
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, trust_remote_code=False)


def on_device(model: Any) -> Any:
    """Move `model` to the GPU if there is one, and return it."""
    if torch.cuda.is_available():
        return model.to("cuda")
    if model.num_parameters() < TINY:
        torch.set_num_threads(1)  # a second thread gains nothing on small tensors, and the environment needs the core
    return model


def peak_memory() -> float:
    """Return the most memory, in GiB, that tensors had on the GPU since the last call, or 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak / GIB


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether the memory of the device ran out."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def clear_memory() -> None:
    """Free memory that nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
