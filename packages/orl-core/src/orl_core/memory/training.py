"""Memory of one training GPU, in bytes: weights, gradients, optimizer, activations and logits.

Pure, and without a trainer's name: an adapter says how its trainer shards a model and which numbers it keeps. The
formulas and their sources stand at the functions; docs/memory.md shows them with examples. The context of CUDA (about
1 GiB), buffers of NCCL and fragmentation come on top.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct, structs

from orl_core.memory.shape import ModelShape


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes on one GPU, by what they are for."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    kv_cache: int = 0

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return sum(structs.astuple(self))


class Sharding(Struct, frozen=True, kw_only=True):
    """The division of a model over `gpus`: by `tensor`, `pipeline` and `expert` parallelism.

    `expert_tensor` is the tensor-parallel size of the experts. `whole` divides weights, gradients and optimizer over
    all GPUs, as FSDP does; otherwise the optimizer alone is divided over the data-parallel GPUs, as Megatron's
    distributed optimizer does. `sequence` says that tensor parallelism divides the hidden states too.
    """

    gpus: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    whole: bool = False
    sequence: bool = False

    @property
    def replicas(self) -> int:
        """The GPUs that hold the same weights and share out the optimizer: data x context parallel."""
        return max(1, self.gpus // (self.tensor * self.pipeline))

    @property
    def expert_replicas(self) -> int:
        """The GPUs that hold the same experts."""
        return max(1, self.gpus // (self.expert_tensor * self.expert * self.pipeline))


class PerParameter(Struct, frozen=True, kw_only=True):
    """Bytes for each trained parameter. `cast` is the copy that a computation makes of it, which is not kept."""

    weights: float
    gradients: float
    optimizer: float
    cast: float = 0.0


# bf16 weights, fp32 gradients; fp32 weights and two moments in the optimizer (Megatron-LM, dist_optimizer.md).
MEGATRON = PerParameter(weights=2, gradients=4, optimizer=12)
# fp32 weights, gradients and moments of torch's AdamW; bf16 copies for the computation.
FP32_ADAMW = PerParameter(weights=4, gradients=4, optimizer=8, cast=2)
# Moments of one byte each, with an fp32 scale for a block of 256 (bitsandbytes).
EIGHT_BIT_MOMENTS = 2 * (1 + 4 / 256)


class Kernels(Struct, frozen=True, kw_only=True):
    """Bytes that one token leaves in one layer, for each number of a width.

    `stream` is the hidden state between two layers. `hidden`, `query`, `key_value` (keys and values together) and `mlp`
    are kept for the backward pass. `mlp_peak` replaces `mlp` in the layer whose backward pass runs, which holds
    gradients too. `routed` is for each hidden number of each expert that the token passes.
    """

    stream: int
    hidden: int
    query: int
    key_value: int
    mlp: int
    mlp_peak: int
    routed: int = 4


# Tensors of bf16 with fused norms, rotation and SwiGLU: hidden 4 x 2, query 2 x 2, keys and values 2, MLP 3 x 2;
# counted as in arXiv 2205.05198, section 4.1, for a layer without dropout.
FUSED = Kernels(stream=2, hidden=8, query=4, key_value=2, mlp=6, mlp_peak=10)
# The same without the fused SwiGLU, measured on an H200 (docs/evidence/slime.md).
UNFUSED_MLP = structs.replace(FUSED, mlp=9, mlp_peak=13)
# Layers of transformers, measured on torch's MemTracker (tests/trl/test_memory.py). Their norms compute in fp32.
EAGER = Kernels(stream=2, hidden=19, query=15, key_value=4, mlp=9, mlp_peak=13)
# The same under autocast, with fp32 hidden states.
EAGER_AUTOCAST = Kernels(stream=4, hidden=30, query=15, key_value=4, mlp=9, mlp_peak=13)
# The same in fp32 throughout.
EAGER_FP32 = Kernels(stream=4, hidden=38, query=30, key_value=8, mlp=18, mlp_peak=26)

FULL_LOGITS = 12  # bytes of a logit: fp32 logit, softmax and gradient


class Recipe(Struct, frozen=True, kw_only=True):
    """The training step: the bytes of a parameter, the kernels, and the `tokens` of one micro-batch on a GPU.

    `recompute` keeps the hidden states between layers and computes the rest again. `logits` are bytes for each token
    and entry of the vocabulary, 0 where `logit_tile` has them: the bytes of logits that are computed in parts.
    `lora_rank` trains adapters alone. `offloaded` keeps the optimizer in the memory of the host, `all_offloaded`
    weights and gradients too.
    """

    tokens: int
    parameter: PerParameter
    kernels: Kernels
    recompute: bool = True
    logits: float = FULL_LOGITS
    logit_tile: int = 0
    lora_rank: int = 0
    offloaded: bool = False
    all_offloaded: bool = False


def training_memory(shape: ModelShape, sharding: Sharding, recipe: Recipe) -> Memory:
    """Return the bytes of one training GPU, at the peak of a step.

    Weights and gradients: parameters of a GPU x bytes of a parameter. Optimizer: the same / replicas. Activations: see
    `_activations`. Logits: tokens x vocabulary / tensor parallel x bytes of a logit.
    """
    dense, experts = _shares(shape, sharding)
    held = dense + experts
    trained_dense, trained_experts = dense, experts
    adapters = shape.lora_parameters(recipe.lora_rank) if recipe.lora_rank else 0
    if adapters:
        part = sharding.gpus if sharding.whole else sharding.tensor * sharding.pipeline
        trained_dense, trained_experts = adapters / part, 0
        held += adapters / part
    parameter, divided = recipe.parameter, 1 if sharding.whole else sharding.replicas
    states = trained_dense / divided + trained_experts / (1 if sharding.whole else sharding.expert_replicas)
    on_gpu = not recipe.all_offloaded
    gathered = _gathered(shape, sharding, recipe)
    return Memory(
        weights=round(held * parameter.weights * on_gpu + gathered),
        gradients=round((trained_dense + trained_experts) * parameter.gradients * on_gpu),
        optimizer=round(states * parameter.optimizer * (on_gpu and not recipe.offloaded)),
        activations=round(_activations(shape, sharding, recipe)),
        logits=round(recipe.tokens * shape.vocabulary * recipe.logits / sharding.tensor + recipe.logit_tile),
    )


def _shares(shape: ModelShape, sharding: Sharding) -> tuple[float, float]:
    """Return the parameters of the fullest GPU: those of every token, and those of experts."""
    if sharding.whole:
        return (shape.parameters - shape.expert_parameters) / sharding.gpus, shape.expert_parameters / sharding.gpus
    layers = ceil(shape.layers / sharding.pipeline) / shape.layers
    ends = shape.embedding * (1 if shape.tied or sharding.pipeline > 1 else 2) + shape.hidden
    dense = (shape.block_parameters * layers + ends) / sharding.tensor
    return dense, shape.expert_parameters * layers / (sharding.expert * sharding.expert_tensor)


def _gathered(shape: ModelShape, sharding: Sharding, recipe: Recipe) -> float:
    """Return the bytes that FSDP gathers for a computation: both embeddings, the layer that runs and the next one."""
    if not sharding.whole:
        return 0
    layer = (shape.block_parameters + shape.expert_parameters) / shape.layers
    ends = shape.embedding * (1 if shape.tied else 2)
    return (ends + 2 * layer) * (recipe.parameter.cast or recipe.parameter.weights)


def _activations(shape: ModelShape, sharding: Sharding, recipe: Recipe) -> float:
    """Return the bytes of activations at the peak.

    With recompute: tokens x layers x stream + one layer. Without: tokens x (layers - 1) x kept + one layer. Copies of
    the weights that autocast makes stay until the end of the forward pass, or to the backward pass without recompute.
    A stage of a pipeline holds `pipeline` micro-batches, so its layers count as those of the whole model.
    """
    kernels, tokens, attention = recipe.kernels, recipe.tokens, shape.attention
    split = sharding.tensor if sharding.sequence else 1
    experts = shape.experts
    routed = experts.chosen * shape.hidden * kernels.routed if experts else 0
    inside = attention.query * kernels.query + 2 * attention.kv_heads * attention.kv_head * kernels.key_value
    common = (shape.hidden * kernels.hidden + routed) / split + inside / sharding.tensor
    kept = tokens * (common + shape.active_width * kernels.mlp / sharding.tensor)
    peak = tokens * (common + shape.active_width * kernels.mlp_peak / sharding.tensor)
    casts = 0 if sharding.whole else (shape.block_parameters + shape.expert_parameters) * recipe.parameter.cast
    stream = tokens * shape.hidden * kernels.stream / split
    if recipe.recompute:
        return shape.layers * stream + max(peak, casts)
    return (shape.layers - 1) * kept + peak + casts
