"""Memory of a run on its GPUs, estimated from the model's config.json and the sizes of the run, in bytes.

It knows no trainer, and imports no torch and no transformers: adapters pass the sizes and the GPUs that they found.
Parameters are counted from the matrices of a decoder with gated MLPs, without biases and norms, which is within 5 %
of the published numbers of the families COUNTED. Others may have fewer matrices: they are told, and never refused.
docs/memory.md explains the table, docs/evidence.md has measurements. The context of CUDA (about 1 GiB), buffers of NCCL
and fragmentation are not included. A problem is only what clearly cannot fit, because an estimate is not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from huggingface_hub import try_to_load_from_cache
from msgspec import Struct, structs
from orl_core.errors import ConfigError, boundary
from orl_core.names import download_of

from orl_rollout.gpus import Gpu

GIB = 2**30
TOO_MUCH = 1.15  # of a whole GPU: above it an estimate is a problem, whatever its error
ROOM = 0.95  # of the free memory: below it a change counts as one that fits
GRADIENT = 4  # bytes of the gradient of a parameter, and of a number in an MLP
LOGIT = 12  # bytes of a logit: fp32 logit, softmax and gradient
ROUTED = 4  # bytes that one token leaves for each hidden number of each expert that it passes
# Families whose parameters a test compares with published numbers.
COUNTED = frozenset({"deepseek_v3", "gemma2", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"})
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TIED = ("gemma", "cohere", "smollm3")  # families whose config.json leaves `tie_word_embeddings: true` out


class ModelShape(Struct, frozen=True, kw_only=True):
    """Sizes of a decoder, in numbers (not bytes).

    `query` and `key_value` are the widths of all queries, and of keys and values together. A token leaves `cached`
    values in the cache of a layer for each of `cache_heads`; a latent vector is one head. It passes `chosen` experts,
    and at most `width` numbers of MLPs in a layer. `blocks` are the parameters of all layers without those of
    `experts`, of which a router chooses. `adapted` is the sum of inputs and outputs of all matrices of the layers.
    `tied` tells that the output is the matrix of the input embedding, `counted` that the family is COUNTED.
    """

    vocabulary: int
    hidden: int
    layers: int
    query: int
    key_value: int
    cache_heads: int
    cached: int
    width: int
    chosen: int
    blocks: int
    experts: int
    adapted: int
    tied: bool
    counted: bool

    @property
    def embedding(self) -> int:
        """The parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """The parameters of the model; a tied output is not counted twice."""
        return self.blocks + self.experts + self.embedding * (1 if self.tied else 2)

    def token_bytes(self, tensor: int = 1, value_bytes: float = 2) -> int:
        """Return the bytes that one token leaves in the cache of one of `tensor` GPUs, which holds at least one head.

        Sliding windows and linear attention count as full attention, which is the upper bound.
        """
        return round(self.layers * -(-self.cache_heads // tensor) * self.cached * value_bytes)


def config_of(model: str) -> dict[str, Any]:
    """Return the config.json of a checkpoint: of the folder `model`, or of a name in the hub's cache.

    Raises:
        ConfigError: it is not here, or cannot be read.
    """
    path = Path(model) / "config.json"
    with boundary(ConfigError, f"reading {path}"):
        file: Any = path if path.is_file() else None
        with suppress(ValueError):  # a path is not a name of the hub
            file = file or try_to_load_from_cache(model, "config.json")
        if isinstance(file, str | Path):
            return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    get = download_of(model, ", or run ", "config.json")
    raise ConfigError(f"{model} is not on this machine. Give --model the folder of a checkpoint{get}")


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model with this config.json. A model of text and images counts by its text.

    Raises:
        ConfigError: a size is missing.
    """
    with boundary(ConfigError, "reading the sizes in the model's config.json"):
        return _shape_of(_text_of(config))


def experts_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the experts of a layer, and how many of them a token passes; zeros of a dense model.

    Raises:
        ConfigError: config.json holds something else.
    """
    with boundary(ConfigError, "reading the experts in the model's config.json"):
        text = _text_of(config)
        count = next(filter(None, (_size(text, name, 0) for name in EXPERTS)), 0)
        return count, _size(text, "num_experts_per_tok", 0)


def _text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**config, **(config.get("text_config") or {})}


def _shape_of(config: Mapping[str, Any]) -> ModelShape:
    size = partial(_size, config)
    hidden, layers, heads = size("hidden_size"), size("num_hidden_layers"), size("num_attention_heads")
    head, groups, latent = (
        size("head_dim", hidden // heads),
        size("num_key_value_heads", heads),
        size("kv_lora_rank", 0),
    )
    query, key_value = heads * head, 2 * groups * head
    count, chosen = experts_of(config)
    width = size("intermediate_size", 0 if count else None)
    expert = size("moe_intermediate_size", width)
    shared = size("shared_expert_intermediate_size", size("n_shared_experts", 0) * expert) if count else 0
    mixed = layers - size("first_k_dense_replace", 0) if count else 0
    dense = layers - mixed
    adapted_mlps = dense * (hidden + width) + mixed * (count * (hidden + expert) + (hidden + shared) * bool(shared))
    return ModelShape(
        vocabulary=size("vocab_size"),
        hidden=hidden,
        layers=layers,
        query=query,
        key_value=key_value,
        cache_heads=1 if latent else groups,
        cached=latent + size("qk_rope_head_dim") if latent else 2 * head,
        width=max(width, chosen * expert + shared),
        chosen=chosen,
        blocks=hidden * (layers * (2 * query + key_value) + 3 * (dense * width + mixed * shared)),
        experts=mixed * count * 3 * hidden * expert,
        adapted=layers * (4 * hidden + 2 * query + key_value) + 3 * adapted_mlps,
        tied=bool(config.get("tie_word_embeddings", str(config.get("model_type")).startswith(TIED))),
        counted=str(config.get("model_type")) in COUNTED,
    )


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return the size `name`, or the `default` if it is missing or null."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int):
        raise ConfigError(f"config.json of the model: {name} is {value!r}. Expected a whole number")
    return value


class Precision(Struct, frozen=True, kw_only=True):
    """Bytes that training keeps, for each parameter and for each number that one token leaves in one layer.

    `cast` is the copy that a computation makes of a parameter. `stream` is the hidden state between two layers. The
    backward pass needs `hidden`, `query`, `key_value` and `mlp`.
    """

    weights: float
    optimizer: float
    cast: float = 0
    stream: int = 2
    hidden: int
    query: int
    key_value: int
    mlp: int


# bf16 with fused kernels: Megatron-LM, dist_optimizer.md; arXiv 2205.05198, section 4.1, for a layer without dropout.
MEGATRON = Precision(weights=2, optimizer=12, hidden=8, query=4, key_value=2, mlp=6)
# The same without the fused SwiGLU, measured on an H200.
UNFUSED_MLP = structs.replace(MEGATRON, mlp=9)
# fp32 weights and AdamW, layers of transformers in bf16, measured with torch's MemTracker. Their norms compute in fp32.
FSDP = Precision(weights=4, optimizer=8, cast=2, hidden=19, query=15, key_value=4, mlp=9)
# The same under autocast, whose hidden states are fp32.
AUTOCAST = structs.replace(FSDP, stream=4, hidden=30)


class Sizes(Struct, frozen=True, kw_only=True):
    """Sizes of a run: what one GPU of training and one of an engine must hold.

    A micro-batch has `tokens` ids, at least `rows` rollouts of `context` ids, which `split` GPUs share. `tensor`,
    `pipeline` and `expert` (GPUs of all experts of a layer) divide a model over the `gpus` of training. `sharded`
    divides weights, gradients and optimizer over all of them, as FSDP does; otherwise data-parallel GPUs divide the
    optimizer alone, as Megatron does. `sequence` divides hidden states too. `recompute` keeps only the hidden states
    between layers. A `lora_rank` above 0 trains adapters alone. `offloaded` keeps the optimizer in the memory of the
    host, of a `sharded` model weights and gradients too.

    An engine has `engine` GPUs, and at a time `rollouts` whose cache has `value_bytes` for each number. A turn adds
    `turn` ids. `share` is the part of the GPU that an engine next to training takes. `copies` counts the models.
    """

    precision: Precision = MEGATRON
    context: int
    tokens: int = 0
    rows: int = 1
    split: int = 1
    gpus: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sharded: bool = False
    sequence: bool = False
    recompute: bool = True
    lora_rank: int = 0
    offloaded: bool = False
    rollouts: int = 1
    engine: int = 1
    value_bytes: float = 2
    turn: int = 0
    share: float = 0.0
    copies: int = 1

    @property
    def packed(self) -> int:
        """The ids of a micro-batch."""
        return max(self.tokens, -(-self.rows * self.context // self.split))


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


def training_memory(shape: ModelShape, sizes: Sizes) -> Memory:
    """Return the bytes of one training GPU, at the peak of an update."""
    held = sizes.precision
    ends = shape.embedding * (1 if shape.tied or sizes.pipeline > 1 else 2)
    split = sizes.gpus if sizes.sharded else sizes.tensor * sizes.pipeline
    expert_split = sizes.gpus if sizes.sharded else sizes.expert * sizes.pipeline
    dense = (shape.blocks / sizes.pipeline + ends) * sizes.pipeline / split
    experts = shape.experts / expert_split
    adapters = sizes.lora_rank * shape.adapted / split
    trained, trained_experts = (adapters, 0) if adapters else (dense, experts)
    optimized = trained / max(1, sizes.gpus // split) + trained_experts / max(1, sizes.gpus // expert_split)
    layer = (shape.blocks + shape.experts) / shape.layers
    gathered = (ends + 2 * layer) * (held.cast or held.weights) * sizes.sharded
    on_gpu = not (sizes.sharded and sizes.offloaded)
    return Memory(
        weights=round((dense + experts + adapters) * held.weights * on_gpu + gathered),
        gradients=round((trained + trained_experts) * GRADIENT * on_gpu),
        optimizer=round(optimized * held.optimizer * (not sizes.offloaded)),
        activations=round(_activations(shape, sizes)),
        logits=round(sizes.packed * shape.vocabulary * LOGIT / sizes.tensor),
    )


def _activations(shape: ModelShape, sizes: Sizes) -> float:
    """Return the bytes of activations at the peak.

    Copies that autocast makes of the weights stay until the end of the forward pass, or to the backward pass without
    recompute. A stage of a pipeline holds `pipeline` micro-batches, so its layers count as those of the whole model.
    """
    held, tokens = sizes.precision, sizes.packed
    split = sizes.tensor if sizes.sequence else 1
    hidden = shape.hidden * (held.hidden + shape.chosen * ROUTED) / split
    inside = shape.query * held.query + shape.key_value * held.key_value + shape.width * held.mlp
    kept = tokens * (hidden + inside / sizes.tensor)
    peak = kept + tokens * shape.width * GRADIENT / sizes.tensor
    casts = 0 if sizes.sharded else (shape.blocks + shape.experts) * held.cast
    if sizes.recompute:
        return shape.layers * tokens * shape.hidden * held.stream / split + max(peak, casts)
    return (shape.layers - 1) * kept + peak + casts


def engine_memory(shape: ModelShape, sizes: Sizes) -> Memory:
    """Return the bytes of one GPU of an engine, if its rollouts have reached their whole context."""
    return Memory(
        weights=round(2 * shape.parameters / sizes.engine),
        logits=sizes.rollouts * shape.vocabulary * 4,
        kv_cache=sizes.rollouts * sizes.context * shape.token_bytes(sizes.engine, sizes.value_bytes),
    )


class Phase(Struct, frozen=True, kw_only=True):
    """Memory of one GPU in one phase of a run with `sizes`, which must fit into `share` of it.

    With the sizes `least` every run needs some.
    """

    name: str
    memory: Callable[[Sizes], Memory]
    sizes: Sizes
    least: Sizes
    share: float = 1.0


class MemoryReport(Struct, frozen=True, kw_only=True):
    """The estimate of a run: a table, problems that keep the run from fitting, and notes."""

    table: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Changes = Sequence[tuple[str, Mapping[str, Any]]]  # a change in the user's words, and the sizes that it sets


def halves(size: int, least: int) -> list[int]:
    """Return half of `size`, a quarter, and so on down to `least`."""
    return [size >> times for times in range(1, size.bit_length()) if size >> times >= least]


def free_on(gpus: Sequence[Gpu]) -> int:
    """Return the free bytes of the fullest GPU. One that does not tell counts as empty."""
    return min(gpu.total if gpu.free is None else gpu.free for gpu in gpus)


def report_of(
    phases: Sequence[Phase], changes: Changes, gpus: Sequence[Gpu], remarks: Sequence[str] = (), *, counted: bool = True
) -> MemoryReport:
    """Return the table of `phases` with `remarks` below it, and the verdict on each phase if there are `gpus`.

    A model that is not `counted` has no problem, only notes: the run begins. `changes` are proposed for each size that
    they set: the first one that would fit.
    """
    memories = [phase.memory(phase.sizes) for phase in phases]
    lines = [f"{'GiB on each GPU':<16}" + "".join(f"{phase.name:>12}" for phase in phases)]
    for name in (*Memory.__struct_fields__, "total"):
        sizes = [getattr(memory, name) for memory in memories]
        cells = "".join(f"{_gib(size) if size else '':>12}" for size in sizes)
        lines.append(f"{'sum' if name == 'total' else name.replace('_', ' '):<16}{cells}")
    if not gpus:
        return MemoryReport(table="\n".join([*lines, "no GPU found: the estimate is compared with nothing", *remarks]))
    whole, free = min(gpu.total for gpu in gpus), free_on(gpus)
    count = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} of {_gib(whole)} GiB found"
    unknown = any(gpu.free is None for gpu in gpus)
    lines.append(f"{count}; {'free memory is not known' if unknown else f'{_gib(free)} GiB are free on the fullest'}")
    problems, notes = list[str](), list[str]()
    for phase, memory in zip(phases, memories, strict=True):
        if counted and phase.memory(phase.least).total > TOO_MUCH * whole:
            problems.append(_excess(phase, phase.least, changes, whole, free))
        elif memory.total > phase.share * free:
            notes.append(_excess(phase, phase.sizes, changes, whole, free))
    return MemoryReport(table="\n".join([*lines, *remarks]), problems=tuple(problems), notes=tuple(notes))


def _excess(phase: Phase, sizes: Sizes, changes: Changes, whole: int, free: int) -> str:
    """Return what a phase needs with `sizes`, what the GPU has, and the first change of each size that would fit."""
    fitting: dict[str, str] = {}
    for words, fields in changes:
        if phase.memory(structs.replace(phase.sizes, **fields)).total <= ROOM * phase.share * free:
            fitting.setdefault(next(iter(fields)), words)
    share = f" and may take {phase.share:g} of it" if phase.share < 1 else ""
    needs = f"{phase.name} needs about {_gib(phase.memory(sizes).total)} GiB on each GPU{share}"
    advice = f"Any of these would fit: {'; '.join(fitting.values())}" if fitting else "No single change is enough"
    rows = f"with rollouts of {sizes.context} ids" if sizes is phase.sizes else "however short its rollouts are"
    return f"{needs}, {rows}; it has {_gib(whole)} GiB, {_gib(free)} free. {advice}"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
