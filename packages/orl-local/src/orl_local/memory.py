"""Memory of a run on one GPU, which rollouts and training share, and the choices that follow from it.

Engine and trainer take turns, while weights and optimizer stay. An SGLang takes a share of the GPU during rollouts, and
gives it back only if both do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.config.limits import context_tokens_of
from orl_core.errors import ConfigError
from orl_rollout.gpus import Gpu
from orl_rollout.memory.estimate import (
    AUTOCAST,
    FP32,
    Memory,
    MemoryReport,
    Phase,
    Update,
    halves,
    report_of,
    training_memory,
)
from orl_rollout.memory.model import ModelShape, shape_of

from orl_local.options import DEFAULTS, own_options
from orl_local.settings import TOKENS, Settings

WEIGHT_BYTES, FROZEN_BYTES = 4, 2  # as `load_model` loads; keys and values of `generate` have the type of the weights
MOMENTS = {"adamw_8bit": 2 * (1 + 4 / 256), "adafactor": 0.0}  # bytes a parameter
CHUNK_BYTES = 20 * (3 << 23)  # logits of a chunk (`scoring.CHUNK`) in fp32, with what is computed of them
LEAST_CONTEXT = 512  # ids: the shortest context that is proposed
BATCH_TOKENS = 65_536  # of padded prompts in one batch of the model as engine (`engine.sampler`)
SAMPLING = 16  # bytes of a logit while an id is drawn: fp32 logit, log-softmax, probability and sorted copy
USED = 0.9  # of a GPU, that the choices of this module fill
SIZES = tuple(TOKENS << more for more in (3, 2, 1, 0))  # ids of a micro-batch
ON_CPU = "this is the run on a CPU, in fp32"


class OneGpu(Struct, frozen=True, kw_only=True):
    """Sizes of a run on one GPU: `rollouts` of a step and of an `update`, `context` and `turn` in ids.

    `tokens` are the ids of a micro-batch, at least those of one row. `mixed` computes in bf16 with fp32 weights.
    `moments` are the bytes of the optimizer for each parameter. A `lora_rank` trains adapters of frozen bf16 weights.
    `copies` is 2 if a frozen copy of the weights is kept.
    """

    rollouts: int
    update: int
    context: int
    turn: int
    tokens: int = TOKENS
    recompute: bool = True
    mixed: bool = True
    moments: float = AUTOCAST.optimizer
    lora_rank: int = 0
    copies: int = 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight of the model."""
        return FROZEN_BYTES if self.lora_rank and self.mixed else WEIGHT_BYTES


def sizes_of(config: RunConfig, settings: Settings, *, gpu: bool) -> OneGpu:
    """Return the sizes of a run."""
    trainer = config.trainer.with_defaults(DEFAULTS)
    rollouts = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    return OneGpu(
        rollouts=rollouts,
        update=-(-rollouts // settings.updates),
        context=context_tokens_of(config),
        turn=config.rollout.turn_tokens,
        tokens=settings.tokens,
        recompute=settings.recompute,
        mixed=gpu,
        moments=MOMENTS.get(settings.optimizer, AUTOCAST.optimizer),
        lora_rank=settings.lora_rank or 0,
        copies=2 if settings.kl_coef and not settings.lora_rank else 1,
    )


def fitted(
    config: RunConfig, settings: Settings, shape: ModelShape | None, gpus: Sequence[Gpu], share: float
) -> tuple[Settings, bool]:
    """Return the settings with what the options leave open, and whether an SGLang with its `share` gives memory back.

    Activations are kept if they fit, with the engine or without it; then the micro-batches are as large as fits. On a
    CPU the settings stay as they are. A GPU computes activations of a model of unknown size again.
    """
    own, chosen = own_options(config.trainer), config.trainer.max_tokens_per_gpu
    careful = structs.replace(settings, recompute=own.checkpointing != "off")
    if not gpus or shape is None:
        return (careful if gpus else settings), True
    for recompute, room in product((False, True), (USED - share, USED)):
        for tokens in (chosen,) if chosen else SIZES:
            fits = structs.replace(settings, recompute=recompute, tokens=tokens)
            needed = training(shape, sizes_of(config, fits, gpu=True)).total
            if own.checkpointing in ("auto", "on" if recompute else "off") and needed <= room * gpus[0].total:
                return fits, room == USED
    return careful, True


def report(
    config: RunConfig, settings: Settings, model: Mapping[str, Any], gpus: Sequence[Gpu], share: float | None = None
) -> MemoryReport:
    """Return the estimate of a run of the model with this config.json on the `gpus` that were found.

    `share` of the GPU's memory is that of an SGLang; None if the model itself is the engine. A model whose parameters
    orl cannot count has one line instead.
    """
    try:
        shape = shape_of(model)
    except ConfigError as unknown:
        return MemoryReport(table=f"memory is not estimated: {unknown}")
    sizes = sizes_of(config, settings, gpu=bool(gpus))

    def less(name: str, option: str, least: int) -> Changes:
        sized = halves(getattr(sizes, name), least)
        return [(option.format(size), structs.replace(sizes, **{name: size})) for size in sized]

    tokens = less("tokens", "--max-tokens-per-gpu {}", max(LEAST_CONTEXT, sizes.context))
    context = less("context", "--max-context-len {}", LEAST_CONTEXT)
    rollouts = less("rollouts", "{} rollouts a step (--n-samples x --rollout-batch-size)", 1)
    recompute = [("--checkpointing on", structs.replace(sizes, recompute=True))]
    lora = [("--lora-rank 32", structs.replace(sizes, lora_rank=32))]
    changes = (tokens, context, [] if sizes.recompute else recompute, [] if sizes.lora_rank else lora)
    if share is None:
        sampled = _phase("rollouts", partial(sampling, shape), sizes, (rollouts, context))
    else:
        sampled = _served(shape, sizes, share, gpus[0].total if gpus else 0)
    phases = (_phase("training", partial(training, shape), sizes, changes), sampled)
    return report_of(phases, gpus[:1], [] if gpus else [ON_CPU])


Changes = Sequence[tuple[str, OneGpu]]  # one option with ever smaller values, and the sizes with each


def _phase(name: str, memory_of: Callable[[OneGpu], Memory], sizes: OneGpu, changes: Sequence[Changes]) -> Phase:
    """Return a phase with the option `changes`. Rows may end early: every run needs one id of one row."""
    smallest = structs.replace(sizes, update=1, rollouts=1, context=1, turn=1)
    memory, least = memory_of(sizes), memory_of(smallest)
    levers = [[(words, memory_of(changed).total) for words, changed in option] for option in changes]
    when = f" when all rows have {sizes.context} ids"
    return Phase(name=name, memory=memory, needed=memory.total, least=least.total, when=when, levers=levers)


def _served(shape: ModelShape, sizes: OneGpu, share: float, whole: int) -> Phase:
    """Return the phase in which an SGLang has `share` of the `whole` bytes of the GPU, in the row of the KV cache."""
    kept = held(shape, sizes)
    shares = [tenths / 10 for tenths in range(9, 0, -1) if tenths / 10 < share]
    levers = [(f"-- --sglang-mem-fraction-static {less:g}", kept.total + round(less * whole)) for less in shares]
    memory = structs.replace(kept, kv_cache=round(share * whole))
    least = kept.total + (2 * shape.parameters if share else 0)  # SGLang's weights are bf16
    return Phase(name="rollouts", memory=memory, needed=memory.total, least=least, levers=[levers])


def training(shape: ModelShape, sizes: OneGpu) -> Memory:
    """Return the bytes of an update, whose rows are as long as the context.

    Logits: one chunk, and the fp32 gradients of the output matrix, if it trains, and of the last hidden states.
    """
    tokens = max(sizes.context, min(sizes.update * sizes.context, sizes.tokens))
    head = 0 if sizes.lora_rank else 4 * shape.embedding
    precision = AUTOCAST if sizes.mixed else FP32
    precision = structs.replace(
        precision,
        weights=sizes.weight_bytes,
        optimizer=sizes.moments,
        cast=0 if sizes.lora_rank else precision.cast,  # bf16 weights need no copy
    )
    update = Update(precision=precision, tokens=tokens, recompute=sizes.recompute, lora_rank=sizes.lora_rank)
    whole = training_memory(shape, update)
    chunk = min(CHUNK_BYTES, 5 * 4 * tokens * shape.vocabulary)
    copy = (sizes.copies - 1) * shape.parameters * sizes.weight_bytes
    return structs.replace(whole, weights=whole.weights + copy, logits=chunk + head + 4 * tokens * shape.hidden)


def sampling(shape: ModelShape, sizes: OneGpu) -> Memory:
    """Return the bytes of the rollouts of a step with weights and optimizer, in the largest batch.

    The prompts of a batch have at most BATCH_TOKENS ids together, or are a single one, and each row grows by one turn.
    Activations: the MLP, or the attention, of one layer for the prompts of a batch, in fp32.
    """
    batches = [(1, sizes.context)]  # rows, and ids of a prompt
    if sizes.rollouts > 1:
        batches.append((sizes.rollouts, min(sizes.context, BATCH_TOKENS // sizes.rollouts)))
    cached, rows, prompt = max((rows * min(sizes.context, ids + sizes.turn), rows, ids) for rows, ids in batches)
    layer = 12 * shape.hidden + max(12 * shape.width, 16 * shape.query)
    return structs.replace(
        held(shape, sizes),
        activations=rows * prompt * layer,
        logits=rows * shape.vocabulary * SAMPLING,
        kv_cache=cached * shape.token_bytes(value_bytes=sizes.weight_bytes),
    )


def held(shape: ModelShape, sizes: OneGpu) -> Memory:
    """Return the bytes of weights and optimizer, which stay during rollouts."""
    adapters = sizes.lora_rank * shape.adapted
    weights = sizes.copies * shape.parameters * sizes.weight_bytes + adapters * WEIGHT_BYTES
    return Memory(weights=weights, optimizer=round((adapters or shape.parameters) * sizes.moments))
