"""Memory of one GPU of an engine, in bytes: weights, and the keys and values that its rollouts keep.

Pure. It knows no engine by name: `share` is what an engine sets aside for weights and cache, such as SGLang's
`--mem-fraction-static`.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from orl_core.memory.shape import ModelShape
from orl_core.memory.training import Memory


class EngineLoad(Struct, frozen=True, kw_only=True):
    """Load of an engine: `rollouts` at a time, each of up to `context` ids.

    `tensor` is the number of GPUs of the engine. `weight_bytes` and `value_bytes` are those of a weight and of a key or
    value.
    """

    rollouts: int
    context: int
    tensor: int = 1
    weight_bytes: int = 2
    value_bytes: int = 2


def token_bytes(shape: ModelShape, load: EngineLoad) -> int:
    """Return the bytes that one token leaves in the cache of one GPU.

    Layers x 2 x heads of keys and values on the GPU (at least one) x size of a head x bytes of a value. A latent vector
    is on every GPU as a whole. Sliding windows count as full attention, which is the upper bound.
    """
    attention = shape.attention
    if attention.latent:
        return shape.layers * attention.cached * load.value_bytes
    heads = max(1, ceil(attention.kv_heads / load.tensor))
    return shape.layers * 2 * heads * attention.kv_head * load.value_bytes


def engine_memory(shape: ModelShape, load: EngineLoad) -> Memory:
    """Return the bytes of one GPU of an engine, if all rollouts have reached their whole context.

    Weights: parameters / tensor x bytes. Logits: rollouts x vocabulary x 4, for the next id alone.
    """
    return Memory(
        weights=round(shape.parameters * load.weight_bytes / load.tensor),
        logits=load.rollouts * shape.vocabulary * 4,
        kv_cache=load.rollouts * load.context * token_bytes(shape, load),
    )


def rollouts_that_fit(shape: ModelShape, load: EngineLoad, available: float) -> int:
    """Return the number of rollouts of whole context whose cache fits beside the weights into `available` bytes."""
    weights = shape.parameters * load.weight_bytes / load.tensor
    return max(0, int((available - weights) // (load.context * token_bytes(shape, load))))
