"""Memory of a run with TRL on one GPU, which rollouts and training share.

Engine and trainer take turns, while weights and optimizer stay. An SGLang takes a share of the GPU during rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from msgspec import Struct, structs
from orl_core.config.limits import context_tokens_of
from orl_core.errors import ConfigError
from orl_rollout.gpus import Gpu, gpu_memory
from orl_rollout.logs import logger_of
from orl_rollout.memory.estimate import (
    AUTOCAST,
    FP32,
    GIB,
    Memory,
    MemoryReport,
    Phase,
    Update,
    halves,
    report_of,
    training_memory,
)
from orl_rollout.memory.model import ModelShape, shape_of
from orl_rollout.run_folder.contract import Run
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.engine.sampler import BATCH_TOKENS
from orl_trl.options import TOKENS_PER_GPU, own_options
from orl_trl.run_plan.settings import CHECKPOINTING, optimizer_of

logger = logger_of("orl")

WEIGHT_BYTES, FROZEN_BYTES = 4, 2  # as `load_model` loads; keys and values of `generate` have the type of the weights
MOMENTS = {"8bit": 2 * (1 + 4 / 256), "sgd": 0.0, "adafactor": 0.0}  # bytes a parameter, by a part of the name
TILE_TOKENS, TILE_WIDTH = 4096, 32768  # TRL computes the logits of an update in tiles of this size
LEAST_CONTEXT = 512  # ids: the shortest context that is proposed
ON_CPU = "this is the run on a CPU, in fp32; `-- --bf16 true --gradient-checkpointing true` shows that on a GPU"
SAMPLING = 16  # bytes of a logit while an id is drawn: fp32 logit, log-softmax, probability and sorted copy


class OneGpu(Struct, frozen=True, kw_only=True):
    """Sizes of a run on one GPU: `rows` of a pass of training, `rollouts` of a step, `context` and `turn` in ids.

    `tokens` are the ids of a micro-batch, at least those of one row. `mixed` computes in bf16 with fp32 weights.
    `moments` are the bytes of the optimizer for each parameter. A `lora_rank` trains adapters of frozen bf16 weights.
    """

    rows: int
    rollouts: int
    context: int
    turn: int
    tokens: int = TOKENS_PER_GPU
    recompute: bool = True
    mixed: bool = True
    moments: float = AUTOCAST.optimizer
    lora_rank: int = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight of the model."""
        return FROZEN_BYTES if self.lora_rank and self.mixed else WEIGHT_BYTES


def sizes_of(run: Run, settings: GRPOConfig) -> OneGpu:
    """Return the sizes of a run."""
    optimizer = optimizer_of(settings)
    return OneGpu(
        rows=settings.per_device_train_batch_size,
        rollouts=settings.generation_batch_size or 1,
        context=context_tokens_of(run.config),
        turn=run.config.rollout.turn_tokens,
        tokens=run.config.trainer.max_tokens_per_gpu or TOKENS_PER_GPU,
        lora_rank=own_options(run.config.trainer).lora_rank or 0,
        recompute=bool(getattr(settings, CHECKPOINTING)),
        mixed=bool(settings.bf16 or settings.fp16),
        moments=next((size for name, size in MOMENTS.items() if name in optimizer), AUTOCAST.optimizer),
    )


def report(
    run: Run, settings: GRPOConfig, config: Mapping[str, Any], gpus: Sequence[Gpu], share: float | None = None
) -> MemoryReport:
    """Return the estimate of a run of the model with this config.json on the `gpus` that were found.

    `share` of the GPU's memory is that of an SGLang; None if the model itself is the engine. A model whose parameters
    orl cannot count has one line instead.
    """
    try:
        shape = shape_of(config)
    except ConfigError as unknown:
        return MemoryReport(table=f"memory is not estimated: {unknown}")
    sizes = sizes_of(run, settings)

    def less(name: str, option: str, least: int) -> Changes:
        sized = halves(getattr(sizes, name), least)
        return [(option.format(size), structs.replace(sizes, **{name: size})) for size in sized]

    tokens = less("tokens", "--max-tokens-per-gpu {}", max(LEAST_CONTEXT, sizes.context))
    context = less("context", "--max-context-len {}", LEAST_CONTEXT)
    rollouts = less("rollouts", "{} rollouts a step (--n-samples x --rollout-batch-size)", 1)
    recompute = [("-- --gradient-checkpointing true", structs.replace(sizes, recompute=True))]
    lora = [("--lora-rank 32", structs.replace(sizes, lora_rank=32))]
    changes = (tokens, context, [] if sizes.recompute else recompute, [] if sizes.lora_rank else lora)
    if share is None:
        sampled = _phase("rollouts", partial(sampling, shape), sizes, (rollouts, context))
    else:
        sampled = _served(shape, sizes, share, gpus[0].total if gpus else 0)
    phases = (_phase("training", partial(training, shape), sizes, changes), sampled)
    return report_of(phases, gpus[:1], [ON_CPU] if settings.use_cpu else [])


Changes = Sequence[tuple[str, OneGpu]]  # one option with ever smaller values, and the sizes with each


def check_memory(run: Run, settings: GRPOConfig, config: Mapping[str, Any], share: float | None = None) -> None:
    """Refuse a run that cannot fit on the GPU, before its model is loaded; warn of one that may outgrow it."""
    estimate = report(run, settings, config, gpu_memory()[:1], share)
    if estimate.problems:
        raise ConfigError(estimate.problems[0])
    for note in estimate.notes:
        logger.warning("%s", note)


def peak_memory() -> float:
    """Return the most memory, in GiB, that tensors had on the GPU since the last call, or 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak / GIB


def _phase(name: str, memory_of: Callable[[OneGpu], Memory], sizes: OneGpu, changes: Sequence[Changes]) -> Phase:
    """Return a phase with the option `changes`. Rows may end early: every run needs one id of one row."""
    memory, least = memory_of(sizes), memory_of(structs.replace(sizes, rows=1, rollouts=1, context=1, turn=1))
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

    Logits: one tile, and the fp32 gradients of the output matrix, if it trains, and of the last hidden states.
    """
    tokens = max(sizes.context, min(sizes.rows * sizes.context, sizes.tokens))
    tile = (2 if sizes.mixed else 4) * min(tokens, TILE_TOKENS) * min(shape.vocabulary, TILE_WIDTH)
    head = 0 if sizes.lora_rank else 4 * shape.embedding
    precision = AUTOCAST if sizes.mixed else FP32
    precision = structs.replace(
        precision,
        weights=sizes.weight_bytes,
        optimizer=sizes.moments,
        cast=0 if sizes.lora_rank else precision.cast,  # bf16 weights need no copy
    )
    update = Update(precision=precision, tokens=tokens, recompute=sizes.recompute, lora_rank=sizes.lora_rank)
    return structs.replace(training_memory(shape, update), logits=tile + head + 4 * tokens * shape.hidden)


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
    weights = shape.parameters * sizes.weight_bytes + adapters * WEIGHT_BYTES
    return Memory(weights=weights, optimizer=round((adapters or shape.parameters) * sizes.moments))
