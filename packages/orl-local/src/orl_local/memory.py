"""Memory of a run on one GPU, which rollouts and training share, and the choices that follow from it.

Engine and trainer take turns, while weights and optimizer stay. An SGLang takes a share of the GPU during rollouts, and
gives it back only if both do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.config.limits import context_tokens_of
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
    halves,
    report_of,
    training_memory,
)

from orl_local.options import DEFAULTS, own_options
from orl_local.settings import TOKENS, Settings

WEIGHT_BYTES, FROZEN_BYTES = 4, 2  # as `load_model` loads; keys and values of `generate` have the type of the weights
MOMENTS = {"adamw_8bit": 2 * (1 + 4 / 256), "adafactor": 0.0}  # bytes a parameter
CHUNK_BYTES = 20 * (3 << 23)  # logits of a chunk (`scoring.CHUNK`) in fp32, with what is computed of them
LEAST_CONTEXT = 512  # ids: the shortest context that is proposed
BATCH_TOKENS = 65_536  # of padded prompts in one batch of the model as engine (`engine.sampler`)
SAMPLING = 16  # bytes of a logit while an id is drawn: fp32 logit, log-softmax, probability and sorted copy
USED = 0.9  # of a GPU, that the choices of this module fill
MICRO_BATCHES = tuple(TOKENS << more for more in (3, 2, 1, 0))  # ids
UNKNOWN = "memory is not estimated: config.json of the model does not tell its sizes"


def sizes_of(config: RunConfig, settings: Settings, shards: int = 1) -> Sizes:
    """Return the sizes of a run on a GPU. Adapters train on frozen bf16 weights, which need no copy.

    It has one of `shards` of the weights. A layer is gathered in fp32, and has a copy and a gradient meanwhile.
    """
    trainer, rank, context = config.trainer.with_defaults(DEFAULTS), settings.lora_rank or 0, context_tokens_of(config)
    rollouts = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    return Sizes(
        precision=structs.replace(
            AUTOCAST,
            weights=FROZEN_BYTES if rank else WEIGHT_BYTES,
            optimizer=MOMENTS.get(settings.optimizer, AUTOCAST.optimizer),
            cast=0 if rank else AUTOCAST.cast + (WEIGHT_BYTES + GRADIENT) * (shards > 1),
        ),
        gpus=shards,
        sharded=shards > 1,
        context=context,
        tokens=min(-(-rollouts // settings.updates) * context, settings.tokens),
        recompute=settings.recompute,
        lora_rank=rank,
        rollouts=rollouts,
        turn=config.rollout.turn_tokens,
        copies=2 if settings.kl_coef and not rank else 1,
    )


def fitted(
    config: RunConfig,
    settings: Settings,
    shape: ModelShape | None,
    gpus: Sequence[Gpu],
    share: float,
    shards: int = 1,
) -> tuple[Settings, bool]:
    """Return the settings with what the options leave open, and whether an SGLang with its `share` gives memory back.

    Activations are kept if they fit, with the engine or without it; then the micro-batches are as large as fits. On a
    CPU the settings stay as they are. A GPU computes activations of a model of unknown size again. With `async` the
    engine plays during an update: it keeps its share, and the trainer a copy of the weights that it has.
    """
    own, chosen = own_options(config.trainer), config.trainer.max_tokens_per_gpu
    careful = structs.replace(settings, recompute=own.checkpointing != "off")
    if not gpus or shape is None:
        return (careful if gpus else settings), True
    kept = FROZEN_BYTES * shape.parameters / shards / gpus[0].total
    rooms = (USED - share - kept,) if own.asynchronous else (USED - share, USED)
    for recompute, room in product((False, True), rooms):
        for tokens in (chosen,) if chosen else MICRO_BATCHES:
            fits = structs.replace(settings, recompute=recompute, tokens=tokens)
            needed = training(shape, sizes_of(config, fits, shards)).total
            if own.checkpointing in ("auto", "on" if recompute else "off") and needed <= room * gpus[0].total:
                return fits, room == USED
    return careful, True


def shards_of(config: RunConfig, settings: Settings, shape: ModelShape | None, gpus: Sequence[Gpu], ranks: int) -> int:
    """Return how many GPUs share one copy of weights, gradients and optimizer: all, or one if that holds an update.

    Raises:
        ConfigError: they cannot be divided.
    """
    own = own_options(config.trainer)
    if own.sharding == "fsdp" and (ranks == 1 or own.optimizer != "adamw"):
        raise ConfigError("`sharding: fsdp` needs --num-gpus 2 or more that train, and `optimizer: adamw`")
    if own.sharding == "auto" and shape and gpus and own.optimizer == "adamw":
        least = structs.replace(sizes_of(config, settings), tokens=1, context=1)
        return ranks if training(shape, least).total > USED * gpus[0].total else 1
    return ranks if own.sharding == "fsdp" else 1


def report(
    config: RunConfig,
    settings: Settings,
    shape: ModelShape | None,
    gpus: Sequence[Gpu],
    share: float | None = None,
    shards: int = 1,
) -> MemoryReport:
    """Return the estimate of a run on the `gpus` that were found.

    `share` of the GPU's memory is that of an SGLang; None if the model itself is the engine. Rows may end early: every
    run needs one id of one row.
    """
    if shape is None:
        return MemoryReport(table=UNKNOWN)
    sizes = structs.replace(sizes_of(config, settings, shards), share=share or 0.0)
    frozen = structs.replace(sizes.precision, weights=FROZEN_BYTES, cast=0)
    least = structs.replace(sizes, tokens=1, rollouts=1, context=1, turn=1, share=min(sizes.share, 0.01))
    rollouts = partial(sampling, shape) if share is None else partial(served, shape, gpus[0].total if gpus else 0)
    changes = [
        *((f"--max-tokens-per-gpu {size}", {"tokens": size}) for size in halves(sizes.packed, sizes.context)),
        *((f"--max-context-len {size}", {"context": size}) for size in halves(sizes.context, LEAST_CONTEXT)),
        *(
            (f"{size} rollouts a step (--n-samples x --rollout-batch-size)", {"rollouts": size})
            for size in halves(sizes.rollouts, 1)
        ),
        *((f"-- --sglang-mem-fraction-static {less / 10:g}", {"share": less / 10}) for less in range(9, 0, -1)),
        ("--checkpointing on", {"recompute": True}),
        ("--lora-rank 32", {"lora_rank": 32, "precision": frozen, "copies": 1}),
    ]
    phases = (
        Phase(name="training", memory=partial(training, shape), sizes=sizes, least=least),
        Phase(name="rollouts", memory=rollouts, sizes=sizes, least=least),
    )
    return report_of(phases, changes, gpus[:1], counted=shape.counted)


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
    """Return the bytes of rollouts by an SGLang with its share of the `whole` GPU, and at least its bf16 weights."""
    kept = held(shape, sizes)
    return structs.replace(kept, kv_cache=max(round(sizes.share * whole), 2 * shape.parameters) if sizes.share else 0)


def held(shape: ModelShape, sizes: Sizes) -> Memory:
    """Return the bytes of weights and optimizer, which stay during rollouts."""
    adapters = sizes.lora_rank * shape.adapted
    weights = sizes.copies * shape.parameters * sizes.precision.weights + adapters * WEIGHT_BYTES
    moments = (adapters or shape.parameters) * sizes.precision.optimizer
    return Memory(weights=round(weights / sizes.gpus), optimizer=round(moments / sizes.gpus))
