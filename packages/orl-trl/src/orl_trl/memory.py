"""Memory of a run with TRL on one GPU, which its model shares between rollouts and training.

Engine and trainer take turns, and weights and optimizer stay in place. An SGLang takes a share of the GPU, which it
gives back to training. See `orl_core.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from msgspec import Struct, structs
from orl_core.config.limits import context_tokens_of
from orl_core.errors import ConfigError
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
    report_of,
    shape_of,
    token_bytes,
    training_memory,
)
from orl_core.memory.report import GIB
from orl_core.memory.training import EAGER_AUTOCAST, EAGER_FP32, EIGHT_BIT_MOMENTS, FP32_ADAMW, PerParameter
from orl_rollout.gpus import gpu_memory
from orl_rollout.logs import logger_of
from orl_rollout.run_folder.contract import Run
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.options import TOKENS_PER_GPU, own_options
from orl_trl.sampler import BATCH_TOKENS
from orl_trl.settings import CHECKPOINTING, optimizer_of

logger = logger_of("orl")

WEIGHT_BYTES, FROZEN_BYTES = 4, 2  # as `load_model` loads; keys and values of `generate` have the type of the weights
LORA_RANK = 32  # that is proposed
MOMENTS = {"8bit": EIGHT_BIT_MOMENTS, "sgd": 0.0, "adafactor": 0.0}  # bytes a parameter, by a part of the name
TILE_TOKENS, TILE_WIDTH = 4096, 32768  # TRL computes the logits of an update in tiles of this size
SERVED_BYTES = 2  # of a weight in SGLang
LEAST_CONTEXT = 512  # ids: the shortest context that is proposed
ON_CPU = "this is the run on a CPU, in fp32; `-- --bf16 true --gradient-checkpointing true` shows that on a GPU"
SAMPLING = 16  # bytes of a logit while an id is drawn: fp32 logit, log-softmax, probability and sorted copy


class OneGpu(Struct, frozen=True, kw_only=True):
    """Sizes of a run on one GPU: `rows` of a pass of training, `rollouts` of a step, `context` and `turn` in ids.

    `tokens` are the ids of a micro-batch, at least those of one row. `mixed` computes in bf16 beside fp32 weights.
    `moments` are the bytes of the optimizer for each parameter. `lora_rank` trains adapters above bf16 weights.
    """

    rows: int
    rollouts: int
    context: int
    turn: int
    tokens: int = TOKENS_PER_GPU
    recompute: bool = True
    mixed: bool = True
    moments: float = FP32_ADAMW.optimizer
    lora_rank: int = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight of the model."""
        return FROZEN_BYTES if self.lora_rank and self.mixed else WEIGHT_BYTES


Changes = Sequence[tuple[str, OneGpu]]  # one option with ever smaller values, and the sizes with each


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
        moments=next((size for name, size in MOMENTS.items() if name in optimizer), FP32_ADAMW.optimizer),
    )


def report(
    run: Run, settings: GRPOConfig, config: Mapping[str, Any], gpus: Sequence[Gpu], share: float | None = None
) -> MemoryReport:
    """Return the estimate of a run of the model with this config.json, beside the `gpus` that were found.

    `share` of the GPU's memory is that of an SGLang beside training; None where the model itself is the engine. A model
    whose parameters orl cannot count has one line instead.
    """
    try:
        shape = shape_of(config)
    except ConfigError as unknown:
        return MemoryReport(table=f"memory is not estimated: {unknown}")
    sizes = sizes_of(run, settings)
    tokens = _less(sizes, "tokens", "--max-tokens-per-gpu {}", max(LEAST_CONTEXT, sizes.context))
    lora = [] if sizes.lora_rank else [(f"--lora-rank {LORA_RANK}", structs.replace(sizes, lora_rank=LORA_RANK))]
    context = _less(sizes, "context", "--max-context-len {}", LEAST_CONTEXT)
    recompute = (
        [] if sizes.recompute else [("-- --gradient-checkpointing true", structs.replace(sizes, recompute=True))]
    )
    rollouts = _less(sizes, "rollouts", "{} rollouts a step (--n-samples x --rollout-batch-size)", 1)
    phases = (
        _phase("training", partial(training, shape), sizes, (tokens, context, recompute, lora)),
        _phase("rollouts", partial(sampling, shape), sizes, (rollouts, context))
        if share is None
        else _served(shape, sizes, share, gpus[0].total if gpus else 0),
    )
    return report_of(phases, gpus[:1], [ON_CPU] if settings.use_cpu else [])


def check_memory(run: Run, settings: GRPOConfig, config: Mapping[str, Any], share: float | None = None) -> None:
    """Warn of a run that may outgrow the GPU, once its model is loaded. `share` is as in `report`.

    Raises:
        ConfigError: it cannot fit on the GPU.
    """
    gpus = gpu_memory()[:1]
    loaded = torch.cuda.memory_reserved() if gpus else 0
    free = [structs.replace(gpu, free=None if gpu.free is None else gpu.free + loaded) for gpu in gpus]
    found = report(run, settings, config, free, share)
    for problem in found.problems:
        raise ConfigError(problem)
    for note in found.notes:
        logger.warning("%s", note)


def peak_memory() -> float:
    """Return the most memory, in GiB, that tensors had on the GPU since the last call, or 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak / GIB


def _phase(name: str, memory_of: Callable[[OneGpu], Memory], sizes: OneGpu, changes: Sequence[Changes]) -> Phase:
    """Return a phase with the option `changes`. Rows may end early: what every run needs is one id of one row."""
    memory, least = memory_of(sizes), memory_of(structs.replace(sizes, rows=1, rollouts=1, context=1, turn=1))
    levers = tuple(
        tuple(Lever(words=words, needed=memory_of(smaller).total) for words, smaller in change) for change in changes
    )
    when = f" when all rows have {sizes.context} ids"
    return Phase(name=name, memory=memory, needed=memory.total, least=least.total, when=when, levers=levers)


def _served(shape: ModelShape, sizes: OneGpu, share: float, whole: int) -> Phase:
    """Return the phase in which an SGLang has `share` of the `whole` bytes of the GPU, in the row of the KV cache."""
    beside = held(shape, sizes)
    shares = [tenths / 10 for tenths in range(9, 0, -1) if tenths / 10 < share]
    levers = tuple(
        Lever(words=f"-- --sglang-mem-fraction-static {less:g}", needed=beside.total + round(less * whole))
        for less in shares
    )
    memory = structs.replace(beside, kv_cache=round(share * whole))
    least = beside.total + (SERVED_BYTES * shape.parameters if share else 0)
    return Phase(name="rollouts", memory=memory, needed=memory.total, least=least, levers=(levers,))


def _less(sizes: OneGpu, name: str, words: str, least: int) -> Changes:
    """Return the option `words` with half the size `name`, a quarter, and so on down to `least`."""
    size, halves = getattr(sizes, name), []
    while size % 2 == 0 and size // 2 >= least:
        size //= 2
        halves.append((words.format(size), structs.replace(sizes, **{name: size})))
    return halves


def training(shape: ModelShape, sizes: OneGpu) -> Memory:
    """Return the bytes of an update, whose rows are as long as the context.

    Logits: one tile, and the fp32 gradients of the output matrix, if it trains, and of the last hidden states.
    """
    tokens = max(sizes.context, min(sizes.rows * sizes.context, sizes.tokens))
    tile = (2 if sizes.mixed else 4) * min(tokens, TILE_TOKENS) * min(shape.vocabulary, TILE_WIDTH)
    head = 0 if sizes.lora_rank else 4 * shape.embedding
    cast = FP32_ADAMW.cast * (sizes.mixed and not sizes.lora_rank)
    recipe = Recipe(
        tokens=tokens,
        parameter=PerParameter(weights=sizes.weight_bytes, gradients=4, optimizer=sizes.moments, cast=cast),
        kernels=EAGER_AUTOCAST if sizes.mixed else EAGER_FP32,
        recompute=sizes.recompute,
        logits=0,
        logit_tile=tile + head + 4 * tokens * shape.hidden,
        lora_rank=sizes.lora_rank,
    )
    return training_memory(shape, Sharding(), recipe)


def sampling(shape: ModelShape, sizes: OneGpu) -> Memory:
    """Return the bytes of the rollouts of a step beside weights and optimizer, in the largest batch that can be.

    A batch of r rows has prompts of at most BATCH_TOKENS / r ids (a single row: the context), and each row grows by one
    turn. Activations: the MLP, or the attention, of one layer for the prompts of a batch, in fp32.
    """
    rows, width = max(
        ((rows, min(sizes.context, _prompt(rows, sizes) + sizes.turn)) for rows in range(1, sizes.rollouts + 1)),
        key=lambda batch: batch[0] * batch[1],
    )
    cached = token_bytes(shape, EngineLoad(rollouts=rows, context=width, value_bytes=sizes.weight_bytes))
    prompts = min(rows * _prompt(rows, sizes), max(BATCH_TOKENS, sizes.context))
    layer = 12 * shape.hidden + max(12 * shape.active_width, 16 * shape.attention.query)
    return structs.replace(
        held(shape, sizes),
        activations=prompts * layer,
        logits=rows * shape.vocabulary * SAMPLING,
        kv_cache=rows * width * cached,
    )


def held(shape: ModelShape, sizes: OneGpu) -> Memory:
    """Return the bytes of weights and optimizer, which stay in place while rollouts play."""
    adapters = shape.lora_parameters(sizes.lora_rank)
    trained = adapters if sizes.lora_rank else shape.parameters
    weights = shape.parameters * sizes.weight_bytes + adapters * WEIGHT_BYTES
    return Memory(weights=weights, optimizer=round(trained * sizes.moments))


def _prompt(rows: int, sizes: OneGpu) -> int:
    return sizes.context if rows == 1 else min(sizes.context, BATCH_TOKENS // rows)
