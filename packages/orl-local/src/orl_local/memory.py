"""Memory of a run on one GPU, which rollouts and training share, and the choices that follow from it.

Engine and trainer take turns, while weights and optimizer stay. An engine takes a share of the GPU during rollouts, and
gives it back only if both do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.gpus import Gpu
from orl_rollout.memory import (
    AUTOCAST,
    GRADIENT,
    Memory,
    MemoryReport,
    ModelShape,
    Phase,
    Sizes,
    engine_memory,
    halves,
    report_of,
    training_memory,
)

from orl_local.engine.engine_plan import EngineChoice
from orl_local.options import DEFAULTS, own_options
from orl_local.settings import TOKENS, Settings

WEIGHT_BYTES, FROZEN_BYTES = 4, 2  # as `load_model` loads; keys and values of `generate` have the type of the weights
MOMENTS = {"adamw_8bit": 2 * (1 + 4 / 256), "adafactor": 0.0}  # bytes a parameter
CHUNK_BYTES = 20 * (3 << 23)  # logits of a chunk (`scoring.CHUNK`) in fp32, with what is computed of them
LEAST_CONTEXT = 512  # ids: the shortest context that is proposed
BATCH_TOKENS = 65_536  # of padded prompts in one batch of the model as engine (`engine.in_process_engine`)
SAMPLING = 16  # bytes of a logit while an id is drawn: fp32 logit, log-softmax, probability and sorted copy
USED = 0.9  # of a GPU, that the choices of this module fill
MICRO_BATCHES = tuple(TOKENS << more for more in (3, 2, 1, 0))  # ids
UNKNOWN = "memory is not estimated: config.json of the model does not tell its sizes"


def sizes_of(config: RunConfig, settings: Settings, shards: int = 1) -> Sizes:
    """Return the sizes of a run on a GPU, which has one of `shards` of the weights.

    Adapters train on frozen bf16 weights, which need no copy.
    """
    trainer, rank, context = config.trainer.with_defaults(DEFAULTS), settings.lora_rank or 0, config.context_tokens
    rollouts = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    whole = Sizes(
        precision=structs.replace(
            AUTOCAST,
            weights=FROZEN_BYTES if rank else WEIGHT_BYTES,
            optimizer=MOMENTS.get(settings.optimizer, AUTOCAST.optimizer),
            cast=0 if rank else AUTOCAST.cast,
        ),
        context=context,
        tokens=min(-(-rollouts // settings.updates) * context, settings.tokens),
        recompute=settings.recompute,
        lora_rank=rank,
        rollouts=rollouts,
        turn=config.rollout.turn_tokens,
        copies=2 if settings.kl_coef and not rank else 1,
    )
    return divided(whole, shards)


def divided(whole: Sizes, shards: int) -> Sizes:
    """Return the sizes of each of `shards`. A layer is gathered in fp32, and has a copy and a gradient meanwhile."""
    if shards == 1:
        return whole
    cast = whole.precision.cast and whole.precision.cast + WEIGHT_BYTES + GRADIENT
    return structs.replace(whole, gpus=shards, sharded=True, precision=structs.replace(whole.precision, cast=cast))


class Demand(Struct, frozen=True, kw_only=True):
    """What a run asks for: the `sizes` of its largest micro-batch, and what its options leave open, the fastest first.

    `recompute`, `tokens` and `sharded` as in Sizes. `ahead`: the engine plays during an update.
    """

    sizes: Sizes
    recompute: tuple[bool, ...]
    tokens: tuple[int, ...]
    sharded: tuple[bool, ...]
    ahead: bool


def demand_of(config: RunConfig, settings: Settings) -> Demand:
    """Return what a run with these settings asks for."""
    own, chosen = own_options(config.trainer), config.trainer.max_tokens_per_gpu
    tokens = (chosen,) if chosen else MICRO_BATCHES
    auto = (False, True) if own.optimizer == "adamw" else (False,)
    return Demand(
        sizes=sizes_of(config, structs.replace(settings, tokens=tokens[0])),
        recompute={"auto": (False, True), "on": (True,), "off": (False,)}[own.checkpointing],
        tokens=tokens,
        sharded={"auto": auto, "none": (False,), "fsdp": (True,)}[own.sharding],
        ahead=own.asynchronous,
    )


class Need(Struct, frozen=True, kw_only=True):
    """The most bytes on a GPU that trains, and on one that samples. `lacking` names one that does not fit, or is "".

    The bytes are those with `sizes`, in micro-batches of at most `tokens` ids. `gives`: an engine next to training
    gives its memory back; None if nothing fits.
    """

    sizes: Sizes
    tokens: int
    gives: bool | None
    training: int
    rollouts: int
    lacking: str


def need_of(shape: ModelShape, demand: Demand, engine: EngineChoice, total: int, shards: int) -> Need:
    """Return what a run needs on GPUs of `total` bytes, each with one of `shards` of the weights.

    Activations are kept if they fit, with the engine or without it; then the micro-batches are as large as fits. An
    engine that plays ahead keeps its share, and the trainer a copy of the weights that it has.
    """
    sizes, share, gives = divided(demand.sizes, shards), engine.memory_share or 0.0, None
    kept, tokens = FROZEN_BYTES * shape.parameters / shards / total, demand.tokens[-1]
    rooms = (USED - share - kept,) if demand.ahead else (USED - share, USED)
    for recompute, room, tokens in product(demand.recompute, rooms, demand.tokens):
        sizes = structs.replace(sizes, recompute=recompute, tokens=min(demand.sizes.tokens, tokens))
        if training(shape, sizes).total <= room * total:
            gives = room == USED
            break
    phases = phases_of(shape, sizes, engine, total)
    needed = {phase.name: phase.memory(phase.sizes).total for phase in phases}
    short = [phase.name for phase in phases if needed[phase.name] > min(phase.share, USED) * total]
    return Need(
        sizes=sizes,
        tokens=tokens,
        gives=gives,
        **needed,
        lacking="training" if gives is None else next(iter(short), ""),
    )


def fitted(
    config: RunConfig,
    settings: Settings,
    shape: ModelShape | None,
    gpus: Sequence[Gpu],
    ranks: int,
    engine: EngineChoice,
) -> tuple[Settings, int, bool]:
    """Return the settings with what the options leave open, and whether an engine next to training gives memory back.

    The number is how many of `ranks` share one copy of weights, gradients and optimizer: all, or one if that is enough.
    On a CPU the settings stay as they are. A GPU computes activations of a model of unknown size again.

    Raises:
        ConfigError: the weights cannot be shared.
    """
    demand = demand_of(config, settings)
    adamw = "" if own_options(config.trainer).optimizer == "adamw" else "`optimizer: adamw`"
    if demand.sharded == (True,) and (lacking := "--num-gpus 2 or more" if ranks == 1 else adamw):
        raise ConfigError(f"trainer.local.sharding is fsdp. Give {lacking}, or set it to auto")
    counts = [ranks if sharded else 1 for sharded in demand.sharded]
    if not gpus:
        return settings, counts[0], True
    if shape is None:
        return structs.replace(settings, recompute=demand.recompute[-1]), counts[0], True
    needs = [(need_of(shape, demand, engine, gpus[0].total, shards), shards) for shards in counts]
    need, shards = next((one for one in needs if not one[0].lacking), needs[-1])
    chosen = structs.replace(settings, recompute=need.sizes.recompute, tokens=need.tokens)
    return chosen, shards, need.gives is not False


def report(
    config: RunConfig,
    settings: Settings,
    shape: ModelShape | None,
    gpus: Sequence[Gpu],
    engine: EngineChoice,
    shards: int = 1,
) -> MemoryReport:
    """Return the estimate of a run on the `gpus` that were found."""
    if shape is None:
        return MemoryReport(table=UNKNOWN)
    phases = phases_of(shape, sizes_of(config, settings, shards), engine, gpus[0].total if gpus else 0)
    sizes = phases[0].sizes
    changes = [
        *((f"--max-tokens-per-gpu {size}", {"tokens": size}) for size in halves(sizes.packed, sizes.context)),
        *((f"--max-context-len {size}", {"context": size}) for size in halves(sizes.context, LEAST_CONTEXT)),
        *(
            (f"{size} rollouts a step (--n-samples x --rollout-batch-size)", {"rollouts": size})
            for size in halves(sizes.rollouts, 1)
        ),
        *((f"-- {engine.share_option} {less / 10:g}", {"share": less / 10}) for less in range(9, 0, -1)),
        ("--checkpointing on", {"recompute": True}),
        ("--lora-rank 32", adapted(sizes, 32)),
    ]
    return report_of(phases, changes, gpus[:1], counted=shape.counted)


def adapted(sizes: Sizes, rank: int) -> dict[str, Any]:
    """Return the sizes that change if adapters train instead of all weights."""
    frozen = structs.replace(sizes.precision, weights=FROZEN_BYTES, cast=0)
    return {"lora_rank": rank, "precision": frozen, "copies": 1}


def phases_of(shape: ModelShape, sizes: Sizes, engine: EngineChoice, whole: int) -> tuple[Phase, Phase]:
    """Return training and rollouts on GPUs of `whole` bytes: of rollouts, a GPU that samples.

    Rows may end early: every run needs one id of one row.
    """
    share = engine.memory_share
    sizes = structs.replace(sizes, share=share or 0.0, engine=engine.each)
    least = structs.replace(sizes, tokens=1, rollouts=1, context=1, turn=1, share=min(sizes.share, 0.01))
    memory = partial(sampling, shape) if share is None else partial(served, shape, whole)
    rollouts = Phase(name="rollouts", memory=memory, sizes=sizes, least=least)
    if engine.apart:
        one = structs.replace(sizes, rollouts=1)
        rollouts = structs.replace(rollouts, memory=partial(engine_memory, shape), sizes=one, share=engine.share)
    return Phase(name="training", memory=partial(training, shape), sizes=sizes, least=least), rollouts


def training(shape: ModelShape, sizes: Sizes) -> Memory:
    """Return the bytes of an update, whose rows are as long as the context.

    Logits: one chunk, and the fp32 gradients of the output matrix, if it trains, and of the last hidden states.
    """
    whole = training_memory(shape, sizes)
    copy = (sizes.copies - 1) * shape.parameters * sizes.precision.weights / sizes.gpus
    if sizes.sharded and sizes.precision.cast and not sizes.recompute:
        copy += AUTOCAST.cast * shape.parameters  # that the backward pass needs
    chunk = min(CHUNK_BYTES, 5 * 4 * sizes.packed * shape.vocabulary)
    head = 0 if sizes.lora_rank else 4 * shape.embedding
    logits = chunk + head + 4 * sizes.packed * shape.hidden
    return structs.replace(whole, weights=whole.weights + round(copy), logits=logits)


def sampling(shape: ModelShape, sizes: Sizes) -> Memory:
    """Return the bytes of the rollouts of a step with weights and optimizer, in the largest batch.

    The prompts of a batch have at most BATCH_TOKENS ids together, or are a single one, and each row grows by one turn.
    Activations: the MLP, or the attention, of one layer for the prompts of a batch, in fp32.
    """
    prompts = max(sizes.context, min(BATCH_TOKENS, sizes.rollouts * sizes.context))
    cached = max(sizes.context, min(sizes.rollouts * sizes.context, BATCH_TOKENS + sizes.rollouts * sizes.turn))
    return structs.replace(
        held(shape, sizes),
        activations=prompts * (12 * shape.hidden + max(12 * shape.width, 16 * shape.query)),
        logits=sizes.rollouts * shape.vocabulary * SAMPLING,
        kv_cache=cached * shape.token_bytes(value_bytes=sizes.precision.weights),
    )


def served(shape: ModelShape, whole: int, sizes: Sizes) -> Memory:
    """Return the bytes of rollouts by an engine with its share of the `whole` GPU, and at least for one rollout."""
    needed = engine_memory(shape, structs.replace(sizes, rollouts=1)).total
    return structs.replace(held(shape, sizes), kv_cache=max(round(sizes.share * whole), needed) if sizes.share else 0)


def held(shape: ModelShape, sizes: Sizes) -> Memory:
    """Return the bytes of weights and optimizer, which stay during rollouts."""
    adapters = sizes.lora_rank * shape.adapted
    weights = sizes.copies * shape.parameters * sizes.precision.weights + adapters * WEIGHT_BYTES
    states = (adapters or shape.parameters) * sizes.precision.optimizer
    return Memory(weights=round(weights / sizes.gpus), optimizer=round(states / sizes.gpus))
