"""Memory of a run on a cluster, estimated from its command line and the model's config.json.

No trainer is named: what a training backend keeps follows from its options. It starts no process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs
from orl_core.errors import ConfigError, boundary
from orl_core.estimators import OPTION, estimator_named
from orl_rollout.gpus import Gpu
from orl_rollout.memory.estimate import (
    FSDP,
    MEGATRON,
    UNFUSED_MLP,
    Memory,
    MemoryReport,
    Phase,
    Update,
    halves,
    report_of,
    training_memory,
)
from orl_rollout.memory.model import ModelShape, config_of, shape_of

from orl_cluster.launch.argv import number, value_of
from orl_cluster.launch.command.layout import CONTEXT, PER_GPU, PIPELINE_PARALLEL, Layout
from orl_cluster.launch.options import CONTEXT_PARALLEL

STATIC_SHARE = "--sglang-mem-fraction-static"
TENSOR, ENGINE = "--tensor-model-parallel-size", "--rollout-num-gpus-per-engine"
LEAST_TOKENS = 1024  # the shortest context that is proposed
NODE = 8  # GPUs of a node that is proposed


class Work(Struct, frozen=True, kw_only=True):
    """A command line, and how its GPUs are shared."""

    argv: tuple[str, ...]
    layout: Layout

    def number(self, name: str, default: int = 1) -> int:
        """Return the whole number that the option `name` has."""
        return number(value_of(self.argv, name), name) or default

    def has(self, name: str) -> bool:
        """Tell whether the switch `name` is set."""
        return value_of(self.argv, name) is not None

    def changed(self, *words: object, **layout: int) -> Work:
        """Return the work with other options, and with another layout."""
        return Work(argv=(*self.argv, *map(str, words)), layout=structs.replace(self.layout, **layout))

    @property
    def backend(self) -> str | None:
        """The training backend, if the trainer has several."""
        return value_of(self.argv, "--train-backend")

    @property
    def context(self) -> int:
        """The most ids of a rollout."""
        return self.number(CONTEXT)

    @property
    def packed(self) -> int:
        """The most ids of one GPU's micro-batch: a rollout that is longer than a micro-batch trains alone."""
        return max(self.number(PER_GPU), -(-self.context // self.number(CONTEXT_PARALLEL)))

    @property
    def engines(self) -> int:
        """The number of engines."""
        return max(1, self.layout.rollout // self.number(ENGINE))


Changes = Iterable[tuple[str, Work]]  # one option with ever stronger values, and the work with each


def estimate(argv: Sequence[str], layout: Layout, gpus: Sequence[Gpu]) -> MemoryReport:
    """Return the estimate of the run with the command line `argv` on the `gpus` that were found.

    A model whose config.json is not here, or whose parameters orl cannot count, has one line instead.
    """
    try:
        shape = shape_of(config_of(value_of(argv, "--hf-checkpoint") or ""))
    except ConfigError as unknown:
        return MemoryReport(table=f"memory is not estimated: {unknown}")
    work = Work(argv=tuple(argv), layout=layout)
    with boundary(ConfigError, f"{STATIC_SHARE} of the command line"):
        share = float(value_of(argv, STATIC_SHARE) or 0.9)
    remarks = ["training and engines take turns on the same GPUs"] if layout.colocate else []
    if estimator_named(value_of(argv, OPTION) or "grpo").critic:
        remarks.append("PPO's critic is not in the estimate: it needs as much as training, on its own GPUs or in turn")
    rollouts = work.number("--rollout-batch-size") * work.number("--n-samples-per-prompt")
    each, one = -(-rollouts // work.engines), engine(shape, work, 1)
    if gpus:
        rollouts, available = each * work.engines, share * min(gpu.total for gpu in gpus) - one.weights
        room = max(0, int(available // one.kv_cache)) * work.engines
        held = (
            f"the engines hold {min(room, rollouts)} rollouts of {work.context} ids at a time, of {rollouts} in a step"
        )
        remarks.append(f"{held}; others wait" if room < rollouts else held)

    def serves(work: Work) -> int:
        """Return the bytes without which an engine holds no rollout of whole context: the others wait."""
        one = engine(shape, work, 1)
        return one.weights + one.kv_cache

    changes = (_fewer_tokens(work), _wider(work), _more_gpus(work), *_added(work))
    phases = (
        Phase(
            name="training",
            memory=training(shape, work),
            needed=training(shape, work).total,
            levers=[[(words, training(shape, changed).total) for words, changed in option] for option in changes],
        ),
        Phase(
            name="engine",
            memory=engine(shape, work, each),
            needed=serves(work),
            share=share,
            levers=[
                [(words, serves(changed)) for words, changed in option] for option in (_wider(work), _shorter(work))
            ],
        ),
    )
    return report_of(phases, gpus, remarks)


def training(shape: ModelShape, work: Work) -> Memory:
    """Return the bytes of one training GPU."""
    sharded, packed = work.backend == "fsdp", work.has("--use-dynamic-batch-size")
    recompute = value_of(work.argv, "--gradient-checkpointing" if sharded else "--recompute-granularity")
    megatron = UNFUSED_MLP if work.has("--no-bias-swiglu-fusion") else MEGATRON
    tensor = 1 if sharded else work.number(TENSOR)
    update = Update(
        precision=FSDP if sharded else megatron,
        tokens=work.packed if packed else work.number("--micro-batch-size") * work.context,
        gpus=work.layout.actor * work.layout.nodes,
        tensor=tensor,
        pipeline=work.number(PIPELINE_PARALLEL),
        expert=work.number("--expert-model-parallel-size"),
        expert_tensor=work.number("--expert-tensor-parallel-size", tensor),
        sharded=sharded,
        sequence=work.has("--sequence-parallel"),
        recompute=recompute in ("", "full"),
        lora_rank=work.number("--lora-rank", 0),
        offloaded=work.has("--optimizer-cpu-offload"),
        all_offloaded=work.has("--fsdp-cpu-offload"),
    )
    return training_memory(shape, update)


def engine(shape: ModelShape, work: Work, rollouts: int) -> Memory:
    """Return the bytes of one GPU of an engine, if `rollouts` have reached their whole context."""
    tensor = work.number(ENGINE)
    value_bytes = 1 if (value_of(work.argv, "--sglang-kv-cache-dtype") or "").startswith("fp8") else 2
    return Memory(
        weights=round(2 * shape.parameters / tensor),
        logits=rollouts * shape.vocabulary * 4,
        kv_cache=rollouts * work.context * shape.token_bytes(tensor, value_bytes),
    )


def _fewer_tokens(work: Work) -> Changes:
    if not work.has("--use-dynamic-batch-size"):
        yield from _shorter(work)
        return
    for most in halves(work.packed, LEAST_TOKENS):
        context = most * work.number(CONTEXT_PARALLEL)
        sizes = ((PER_GPU, PER_GPU, most), (CONTEXT, "--max-context-len", context))
        less = [(option, name, size) for option, name, size in sizes if work.number(option) > size]
        words = " ".join(f"{name} {size}" for _, name, size in less)
        yield words, work.changed(*(word for option, _, size in less for word in (option, size)))


def _shorter(work: Work) -> Changes:
    return [(f"--max-context-len {size}", work.changed(CONTEXT, size)) for size in halves(work.context, LEAST_TOKENS)]


def _wider(work: Work) -> Changes:
    divided = [work.layout.rollout] if work.backend == "fsdp" else [work.layout.rollout, work.layout.actor]
    for size in (2, 4, NODE):
        if size > work.number(ENGINE) and not any(gpus % size for gpus in divided):
            yield f"--tp {size}", work.changed(TENSOR, size, ENGINE, size)


def _more_gpus(work: Work) -> Changes:
    layout, option = work.layout, "--num-gpus" if work.layout.colocate else "--actor-gpus"
    for factor in (2, 4, 8):
        actor, nodes = layout.actor * factor, layout.nodes * factor
        if layout.nodes == 1 and actor <= NODE:
            yield f"{option} {actor}", work.changed(actor=actor)
        else:
            yield f"--actor-nodes {nodes}", work.changed(nodes=nodes)


def _added(work: Work) -> Iterator[Changes]:
    """Yield switches that the run does not have: offloading, and adapters if the trainer has them."""
    offload = "--fsdp-cpu-offload" if work.backend == "fsdp" else "--optimizer-cpu-offload"
    if not work.has(offload):
        yield [(f"-- {offload}", work.changed(offload))]
    if work.backend == "megatron" and not work.number("--lora-rank", 0):
        yield [("-- --lora-rank 32", work.changed("--lora-rank", 32))]
