"""Weights that the ranks of a run divide among them (FSDP2), and tensors that are whole again.

What makes a tensor whole is done by all ranks, in one order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer


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
