"""Memory of one GPU by what it is for, the table that shows it, and the changes that would make a run fit.

`git show evidence-2026-11:docs/evidence/memory.md` has the formulas, their sources and measurements. The context of
CUDA (about 1 GiB), buffers of NCCL and fragmentation are not included. A problem is only what clearly cannot fit,
because an estimate is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from orl_rollout.gpus import Gpu
from orl_rollout.memory.model import ModelShape

GIB = 2**30
TOO_MUCH = 1.15  # of a whole GPU: above it an estimate is a problem, whatever its error
ROOM = 0.95  # of the free memory: below it a change counts as one that fits
LOGIT = 12  # bytes of a logit: fp32 logit, softmax and gradient
ROUTED = 4  # bytes that one token leaves for each hidden number of each expert that it passes


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


class Precision(Struct, frozen=True, kw_only=True):
    """Bytes that training keeps, for each parameter and for each number that one token leaves in one layer.

    `cast` is the copy that a computation makes of a parameter. `stream` is the hidden state between two layers. The
    backward pass needs `hidden`, `query`, `key_value` and `mlp`, and `mlp_gradients` in the layer that it has reached.
    """

    weights: float
    gradients: float = 4
    optimizer: float
    cast: float = 0
    stream: int = 2
    hidden: int
    query: int
    key_value: int
    mlp: int
    mlp_gradients: int = 4


# bf16 with fused kernels: Megatron-LM, dist_optimizer.md; arXiv 2205.05198, section 4.1, for a layer without dropout.
MEGATRON = Precision(weights=2, optimizer=12, hidden=8, query=4, key_value=2, mlp=6)
# The same without the fused SwiGLU, measured on an H200.
UNFUSED_MLP = structs.replace(MEGATRON, mlp=9)
# fp32 weights and AdamW, layers of transformers in bf16, measured with torch's MemTracker. Their norms compute in fp32.
FSDP = Precision(weights=4, optimizer=8, cast=2, hidden=19, query=15, key_value=4, mlp=9)
# The same under autocast, whose hidden states are fp32; and in fp32 throughout.
AUTOCAST = structs.replace(FSDP, stream=4, hidden=30)
FP32 = structs.replace(FSDP, cast=0, stream=4, hidden=38, query=30, key_value=8, mlp=18, mlp_gradients=8)


class Update(Struct, frozen=True, kw_only=True):
    """A micro-batch of `tokens` ids on each of `gpus`, which `tensor`, `pipeline` and `expert` parallelism divide.

    `sharded` divides weights, gradients and optimizer over all GPUs, as FSDP does; otherwise data-parallel GPUs divide
    the optimizer alone, as Megatron does. `sequence` divides hidden states too. `recompute` keeps only the hidden
    states between layers. A `lora_rank` above 0 trains adapters alone. `offloaded` keeps the optimizer in the memory of
    the host, `all_offloaded` weights and gradients too.
    """

    precision: Precision
    tokens: int
    gpus: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sharded: bool = False
    sequence: bool = False
    recompute: bool = True
    lora_rank: int = 0
    offloaded: bool = False
    all_offloaded: bool = False


def training_memory(shape: ModelShape, update: Update) -> Memory:
    """Return the bytes of one training GPU, at the peak of an update."""
    held = update.precision
    layers = shape.block_parameters + shape.expert_parameters
    ends = shape.embedding * (1 if shape.tied else 2)
    split = update.tensor * update.pipeline
    if update.sharded:
        split = update.gpus
        dense, experts = (shape.parameters - shape.expert_parameters) / split, shape.expert_parameters / split
        gathered = (ends + 2 * layers / shape.layers) * (held.cast or held.weights)
        replicas = expert_replicas = 1
    else:
        stage = -(-shape.layers // update.pipeline) / shape.layers
        first = shape.embedding if update.pipeline > 1 else ends
        expert_split = update.expert * update.expert_tensor
        dense = (shape.block_parameters * stage + first + shape.hidden) / update.tensor
        experts, gathered = shape.expert_parameters * stage / expert_split, 0.0
        replicas = max(1, update.gpus // split)
        expert_replicas = max(1, update.gpus // (expert_split * update.pipeline))
    adapters = update.lora_rank * shape.adapted / split
    trained, trained_experts = (adapters, 0) if adapters else (dense, experts)
    optimized = trained / replicas + trained_experts / expert_replicas
    on_gpu = not update.all_offloaded
    return Memory(
        weights=round((dense + experts + adapters) * held.weights * on_gpu + gathered),
        gradients=round((trained + trained_experts) * held.gradients * on_gpu),
        optimizer=round(optimized * held.optimizer * (on_gpu and not update.offloaded)),
        activations=round(_activations(shape, update)),
        logits=round(update.tokens * shape.vocabulary * LOGIT / update.tensor),
    )


def _activations(shape: ModelShape, update: Update) -> float:
    """Return the bytes of activations at the peak.

    Copies that autocast makes of the weights stay until the end of the forward pass, or to the backward pass without
    recompute. A stage of a pipeline holds `pipeline` micro-batches, so its layers count as those of the whole model.
    """
    held = update.precision
    split = update.tensor if update.sequence else 1
    hidden = shape.hidden * (held.hidden + shape.chosen * ROUTED) / split
    inside = shape.query * held.query + shape.key_value * held.key_value + shape.width * held.mlp
    kept = update.tokens * (hidden + inside / update.tensor)
    peak = kept + update.tokens * shape.width * held.mlp_gradients / update.tensor
    casts = 0 if update.sharded else (shape.block_parameters + shape.expert_parameters) * held.cast
    if update.recompute:
        return shape.layers * update.tokens * shape.hidden * held.stream / split + max(peak, casts)
    return (shape.layers - 1) * kept + peak + casts


class Phase(Struct, frozen=True, kw_only=True):
    """Memory of one GPU in one phase of a run. `needed` are the bytes that must fit into `share` of it, at the worst.

    `least` are those that every run needs, if they are fewer; `when` says when it needs more. `levers`
    has for each option ever stronger changes, and the bytes with each.
    """

    name: str
    memory: Memory
    needed: int
    least: int | None = None
    when: str = ""
    share: float = 1.0
    levers: Sequence[Sequence[tuple[str, int]]] = ()


class MemoryReport(Struct, frozen=True, kw_only=True):
    """The estimate of a run: a table, problems that keep the run from fitting, and notes."""

    table: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def halves(size: int, least: int) -> list[int]:
    """Return half of `size`, a quarter, and so on down to `least`."""
    return [size >> times for times in range(1, size.bit_length()) if size >> times >= least]


def report_of(phases: Sequence[Phase], gpus: Sequence[Gpu], remarks: Sequence[str] = ()) -> MemoryReport:
    """Return the table of `phases` with `remarks` below it, and the verdict on each phase if there are `gpus`."""
    lines = [f"{'GiB on each GPU':<16}" + "".join(f"{phase.name:>12}" for phase in phases)]
    for name in (*Memory.__struct_fields__, "total"):
        sizes = [getattr(phase.memory, name) for phase in phases]
        cells = "".join(f"{_gib(size) if size else '':>12}" for size in sizes)
        lines.append(f"{'sum' if name == 'total' else name.replace('_', ' '):<16}{cells}")
    if not gpus:
        return MemoryReport(table="\n".join([*lines, "no GPU found: the estimate is compared with nothing", *remarks]))
    whole, known = min(gpu.total for gpu in gpus), [gpu.free for gpu in gpus if gpu.free is not None]
    free = min([gpu.total for gpu in gpus if gpu.free is None] + known)
    count = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} of {_gib(whole)} GiB found"
    rest = f"{_gib(min(known))} GiB are free on the fullest" if known else "their free memory is not known"
    problems, notes = list[str](), list[str]()
    for phase in phases:
        least = phase.needed if phase.least is None else phase.least
        if least > TOO_MUCH * whole:
            problems.append(_excess(structs.replace(phase, needed=least, when=""), whole, free))
        elif phase.needed > phase.share * free:
            notes.append(_excess(phase, whole, free))
    table = "\n".join([*lines, f"{count}; {rest}", *remarks])
    return MemoryReport(table=table, problems=tuple(problems), notes=tuple(notes))


def _excess(phase: Phase, whole: int, free: int) -> str:
    """Return what a phase needs, what the GPU has, and the mildest change of each option that would fit."""
    share = f" and may take {phase.share:g} of it" if phase.share < 1 else ""
    rest = f", {_gib(free)} free" if free < whole else ""
    needs = f"{phase.name} needs about {_gib(phase.needed)} GiB on each GPU{phase.when}{share}"
    excess = f"{needs}; it has {_gib(whole)} GiB{rest}"
    groups, room = [group for group in phase.levers if group], ROOM * phase.share * free
    if fitting := [words for group in groups for words, _ in [one for one in group if one[1] <= room][:1]]:
        return f"{excess}. Any of these would fit: {'; '.join(fitting)}"
    if groups:
        return f"{excess}. None of these is enough alone: {'; '.join(group[-1][0] for group in groups)}"
    return excess


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
