"""Memory of a run on a cluster, estimated from its command line and the model's config.json; see `orl_core.memory`.

No trainer is named: what a training backend keeps follows from its options. No process is asked, and the GPUs that a
probe found are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from huggingface_hub import try_to_load_from_cache
from msgspec import Struct, structs
from orl_core.errors import ConfigError, boundary
from orl_core.memory import (
    EngineLoad,
    Gpu,
    Lever,
    Memory,
    MemoryReport,
    ModelShape,
    Phase,
    Recipe,
    Sharding,
    engine_memory,
    report_of,
    rollouts_that_fit,
    shape_of,
    token_bytes,
    training_memory,
)
from orl_core.memory.training import EAGER, FP32_ADAMW, FUSED, MEGATRON, UNFUSED_MLP
from orl_rollout.bounded_files import read_whole

from orl_cluster.estimators import OPTION, estimator_named
from orl_cluster.launch.argv import number, value_of
from orl_cluster.launch.layout import CONTEXT, PER_GPU, Layout
from orl_cluster.launch.options import CONTEXT_PARALLEL

STATIC_SHARE = "--sglang-mem-fraction-static"
LEAST_TOKENS = 1024  # the shortest context that is proposed
NODE = 8  # GPUs of a node that is proposed


class Work(Struct, frozen=True, kw_only=True):
    """A command line, and how its GPUs are shared."""

    argv: tuple[str, ...]
    layout: Layout

    def number(self, name: str, default: int) -> int:
        """Return the whole number that the option `name` has."""
        return number(value_of(self.argv, name), name) or default

    def has(self, name: str) -> bool:
        """Tell whether the switch `name` is set."""
        return value_of(self.argv, name) is not None

    def changed(self, *words: object, **layout: int) -> Work:
        """Return the work with other options, and with another layout."""
        changed = structs.replace(self.layout, **layout) if layout else self.layout
        return Work(argv=(*self.argv, *map(str, words)), layout=changed)

    @property
    def sharded(self) -> bool:
        """Tell whether training divides all weights over all GPUs."""
        return value_of(self.argv, "--train-backend") == "fsdp"

    @property
    def context(self) -> int:
        """The most ids of a rollout."""
        return self.number(CONTEXT, 1)

    @property
    def packed(self) -> int:
        """The most ids of one GPU's micro-batch: a rollout that is longer than a micro-batch trains alone."""
        return max(self.number(PER_GPU, 1), -(-self.context // self.parallel))

    @property
    def parallel(self) -> int:
        """The GPUs that share a sequence."""
        return self.number(CONTEXT_PARALLEL, 1)

    @property
    def tensor(self) -> int:
        """The GPUs of an engine."""
        return self.number("--rollout-num-gpus-per-engine", 1)

    @property
    def engines(self) -> int:
        """The number of engines."""
        return max(1, self.layout.rollout // self.tensor)


Changes = Iterator[tuple[str, Work]]  # one option with ever stronger values, and the work with each


def estimate(argv: Sequence[str], layout: Layout, gpus: Sequence[Gpu]) -> MemoryReport:
    """Return the estimate of the run with the command line `argv`, beside the `gpus` that were found.

    A model whose config.json is not here, or whose parameters orl cannot count, has one line instead.
    """
    try:
        shape = shape_of(config_of(value_of(argv, "--hf-checkpoint") or ""))
    except ConfigError as unknown:
        return MemoryReport(table=f"memory is not estimated: {unknown}")
    work = Work(argv=tuple(argv), layout=layout)
    changes = [_fewer_tokens(work), _wider(work), _more_gpus(work), _offloaded(work), _adapters(work)]
    phases = (
        Phase(
            name="training",
            memory=training(shape, work),
            needed=training(shape, work).total,
            levers=_levers(changes, lambda smaller: training(shape, smaller).total),
        ),
        Phase(
            name="engine",
            memory=engine_memory(shape, _load(work)),
            needed=_least(shape, work),
            share=_share(work),
            levers=_levers([_wider(work), _shorter(work)], lambda smaller: _least(shape, smaller)),
        ),
    )
    return report_of(phases, gpus, [*_remarks(work), *_room(shape, work, gpus)])


def training(shape: ModelShape, work: Work) -> Memory:
    """Return the bytes of one training GPU."""
    packed = work.has("--use-dynamic-batch-size")
    tokens = work.packed if packed else work.number("--micro-batch-size", 1) * work.context
    recompute = "--gradient-checkpointing" if work.sharded else "--recompute-granularity"
    every = work.has("--fsdp-cpu-offload")
    megatron = UNFUSED_MLP if work.has("--no-bias-swiglu-fusion") else FUSED
    recipe = Recipe(
        tokens=tokens,
        parameter=FP32_ADAMW if work.sharded else MEGATRON,
        kernels=EAGER if work.sharded else megatron,
        recompute=value_of(work.argv, recompute) in ("", "full"),
        lora_rank=work.number("--lora-rank", 0),
        offloaded=work.has("--optimizer-cpu-offload") or every,
        all_offloaded=every,
    )
    return training_memory(shape, _sharding(work), recipe)


def _sharding(work: Work) -> Sharding:
    gpus = work.layout.actor * work.layout.nodes
    if work.sharded:
        return Sharding(gpus=gpus, whole=True)
    tensor = work.number("--tensor-model-parallel-size", 1)
    return Sharding(
        gpus=gpus,
        tensor=tensor,
        pipeline=work.number("--pipeline-model-parallel-size", 1),
        expert=work.number("--expert-model-parallel-size", 1),
        expert_tensor=work.number("--expert-tensor-parallel-size", tensor),
        sequence=work.has("--sequence-parallel"),
    )


def _load(work: Work) -> EngineLoad:
    """Return what one engine is asked for."""
    rollouts = work.number("--rollout-batch-size", 1) * work.number("--n-samples-per-prompt", 1)
    small = (value_of(work.argv, "--sglang-kv-cache-dtype") or "").startswith("fp8")
    return EngineLoad(
        rollouts=-(-rollouts // work.engines),
        context=work.context,
        tensor=work.tensor,
        value_bytes=1 if small else 2,
    )


def _least(shape: ModelShape, work: Work) -> int:
    """Return the bytes without which an engine holds no rollout of whole context: the others wait for their turn."""
    load = _load(work)
    return engine_memory(shape, load).weights + work.context * token_bytes(shape, load)


def _share(work: Work) -> float:
    with boundary(ConfigError, f"{STATIC_SHARE} of the command line"):
        return float(value_of(work.argv, STATIC_SHARE) or 0.9)


def _remarks(work: Work) -> Iterator[str]:
    if work.layout.colocate:
        yield "training and engines take turns on the same GPUs"
    if estimator_named(value_of(work.argv, OPTION) or "grpo").critic:
        yield "PPO's critic is not in the estimate: it needs as much as training, on its own GPUs or in turn"


def _room(shape: ModelShape, work: Work, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Say how many rollouts of whole context the engines hold at a time."""
    if gpus:
        available, load = _share(work) * min(gpu.total for gpu in gpus), _load(work)
        room, asked = rollouts_that_fit(shape, load, available) * work.engines, load.rollouts * work.engines
        told = f"the engines hold {min(room, asked)} rollouts of {work.context} ids at a time, of {asked} in a step"
        yield f"{told}; others wait" if room < asked else told


def _levers(changes: Sequence[Changes], needed: Callable[[Work], int]) -> tuple[tuple[Lever, ...], ...]:
    return tuple(tuple(Lever(words=words, needed=needed(smaller)) for words, smaller in change) for change in changes)


def _fewer_tokens(work: Work) -> Changes:
    if not work.has("--use-dynamic-batch-size"):
        yield from _shorter(work)
        return
    most = work.packed
    while most // 2 >= LEAST_TOKENS:
        most //= 2
        words = [("--max-tokens-per-gpu", PER_GPU, most)] if work.number(PER_GPU, 1) > most else []
        if work.context > most * work.parallel:
            words.append(("--max-context-len", CONTEXT, most * work.parallel))
        changed = [word for _, option, value in words for word in (option, value)]
        yield " ".join(f"{name} {value}" for name, _, value in words), work.changed(*changed)


def _shorter(work: Work) -> Changes:
    context = work.context
    while context // 2 >= LEAST_TOKENS:
        context //= 2
        yield f"--max-context-len {context}", work.changed(CONTEXT, context)


def _wider(work: Work) -> Changes:
    tensor, layout = work.tensor, work.layout
    while tensor * 2 <= NODE and layout.rollout % (tensor * 2) == 0:
        tensor *= 2
        if not work.sharded and layout.actor % tensor:
            return
        yield (
            f"--tp {tensor}",
            work.changed("--tensor-model-parallel-size", tensor, "--rollout-num-gpus-per-engine", tensor),
        )


def _more_gpus(work: Work) -> Changes:
    layout, option = work.layout, "--num-gpus" if work.layout.colocate else "--actor-gpus"
    for factor in (2, 4, 8):
        actor = layout.actor * factor
        if layout.nodes == 1 and actor <= NODE:
            yield f"{option} {actor}", work.changed(actor=actor)
        else:
            nodes = layout.nodes * factor
            yield f"--actor-nodes {nodes}", work.changed(nodes=nodes)


def _offloaded(work: Work) -> Changes:
    option = "--fsdp-cpu-offload" if work.sharded else "--optimizer-cpu-offload"
    if not work.has(option):
        yield f"-- {option}", work.changed(option)


def _adapters(work: Work) -> Changes:
    """Propose adapters where the trainer has them: one with a choice of backends, and Megatron chosen."""
    if value_of(work.argv, "--train-backend") == "megatron" and not work.number("--lora-rank", 0):
        yield "-- --lora-rank 32", work.changed("--lora-rank", 32)


def config_of(model: str) -> dict[str, Any]:
    """Return the config.json of a checkpoint: of the folder `model`, or of a hub's name that was loaded before.

    Raises:
        ConfigError: there is none on this machine, or it is no JSON object.
    """
    path = Path(model) / "config.json"
    with boundary(ConfigError, f"reading {path}"):
        found = path if path.is_file() else _downloaded(model)
        if found:
            return msgspec.json.decode(read_whole(found), type=dict[str, Any])
    get = "" if Path(model).is_absolute() else f", or run `hf download {model} config.json`"
    raise ConfigError(f"{model} is not on this machine. Give --model the folder of a checkpoint{get}")


def _downloaded(name: str) -> Path | None:
    """Return the config.json of a hub's name in the hub's cache; None if it is not there."""
    with suppress(ValueError):  # it is no name of a hub
        found = try_to_load_from_cache(name, "config.json")
        return Path(found) if isinstance(found, str) else None
    return None
