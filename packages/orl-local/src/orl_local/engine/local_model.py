"""A model in this process: how it is loaded, its device, and what happens when the memory of the device runs out.

Rollouts and training then continue in smaller batches. Ranks may divide its weights among them (FSDP2). What makes a
tensor whole again is done by all ranks, in one order.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
import transformers
from orl_core.errors import ConfigError, boundary
from orl_rollout.memory import GIB
from orl_rollout.tokenizer.pretrained import check_hub
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

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


def sharded(model: Any) -> Any:
    """Divide the weights of `model` among the ranks, layer by layer, and return it. It comes on the CPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (distributed.get_world_size(),))
    for module in reversed([*model.modules()]):  # inner ones first
        if module is model or isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh)
    return model


def full(tensor: Tensor) -> Tensor:
    """Return the whole of a divided tensor, and any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def leads(model: Any) -> bool:
    """Tell whether this rank writes and sends what is whole: the first one of those that share `model`."""
    return not isinstance(model, FSDPModule) or distributed.get_rank() == 0


def on_cpu(model: Any, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return whole `tensors` on the CPU, one gathered after the other; {} on a rank that only takes part."""
    return {name: one.cpu() for name, one in ((name, full(one)) for name, one in tensors) if leads(model)}


def part_like(value: Any, parameter: Tensor) -> Any:
    """Return this rank's part of `value`, divided as `parameter` is; whole if its shape is another."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
