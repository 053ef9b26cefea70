"""What a run on a cluster is told of its model: its shape, whether it has experts, and the memory that it takes.

The options of a shape are in scripts of the trainer's checkout. Memory is estimated from the command line and the
model's config.json. No trainer is named: what a training backend keeps follows from its options.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import structs
from orl_core import TrainerConfig
from orl_core.errors import ConfigError, boundary
from orl_core.estimators import OPTION, estimator_named
from orl_core.text import did_you_mean
from orl_rollout.edge import children
from orl_rollout.gpus import Gpu
from orl_rollout.memory import (
    FSDP,
    MEGATRON,
    UNFUSED_MLP,
    Changes,
    MemoryReport,
    Phase,
    Sizes,
    config_of,
    engine_memory,
    experts_of,
    free_on,
    halves,
    report_of,
    shape_of,
    training_memory,
)

from orl_cluster.launch.command.command import LaunchRequest, Layout
from orl_cluster.launch.command.trainer_defaults import MODEL, absolute
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.options import (
    CONTEXT,
    CONTEXT_PARALLEL,
    ENGINE_GPUS,
    ENGINE_SHARE,
    LORA,
    PER_GPU,
    PIPELINE_PARALLEL,
    SEQUENCE_PARALLEL,
    TENSOR_PARALLEL,
    cluster_of,
    number,
    value_of,
)

EXPERTS = "--num-experts"
SHAPE_SECONDS = 120.0  # it may import the trainer's package
LEAST_TOKENS = 1024  # the shortest context that is proposed
NODE = 8  # GPUs of a node that is proposed


def model_shape(
    installation: Installation,
    trainer: TrainerConfig,
    suffix: str,
    command_of: Callable[[Path], list[str]],
    separator: str | None = None,
) -> list[str]:
    """Return the options of the model's shape: the words that `command_of(script)` prints between `separator`.

    The script is the one that `--model-args` names, a path or a name in scripts/models of the trainer; else the one
    that is named like the model, whatever the case. Without an installed trainer there are none to show.

    Raises:
        ConfigError: none is named, there is no such file, or it gives no options.
    """
    if installation.missing:
        return []
    script = _model_script(installation, trainer, suffix).absolute()
    environment = {**os.environ, **installation.environment}
    with boundary(ConfigError, f"--model-args {script}"):
        printed = children.run(command_of(script), environment=environment, timeout=SHAPE_SECONDS)
    words = [word for word in printed.stdout.split(separator) if word]
    if printed.returncode or not words:
        why = (printed.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"--model-args {script}: it gives no options of a model: {why}")
    return words


def is_mixture(request: LaunchRequest, shape: Sequence[str]) -> bool:
    """Tell whether the model has experts: by the options of its `shape`, else by its config.json, if that is here."""
    words = [*shape, *request.words]
    if shape or value_of(words, EXPERTS):
        return number(words, EXPERTS) > 1
    with suppress(ConfigError):
        return experts_of(config_of(absolute(request.trainer.model or MODEL)))[0] > 1
    return False


def _model_script(installation: Installation, trainer: TrainerConfig, suffix: str) -> Path:
    folder = Path(installation.findings.root, "scripts", "models")
    known = sorted(script.stem for script in folder.glob(f"*{suffix}"))
    model = Path(trainer.model or MODEL).name.lower()
    named = cluster_of(trainer).model_args or next((script for script in known if script.lower() == model), "")
    if not named:
        raise ConfigError(
            f"--model-args: name the script with the shape of {trainer.model}: a path, or one of {', '.join(known)}"
        )
    name = Path(named).name.removesuffix(suffix)
    script = Path(named) if Path(named).is_file() else folder / f"{name}{suffix}"
    if not script.is_file():
        raise ConfigError(f"--model-args {named}: no such script{did_you_mean(name, known)}")
    return script


def estimate(argv: Sequence[str], layout: Layout, gpus: Sequence[Gpu]) -> MemoryReport:
    """Return the estimate of the run with the command line `argv` on the `gpus` that were found.

    A model whose config.json is not here, or does not tell its sizes, has one line instead. The column of the engine
    has the rollouts that one engine holds at a time, and at least one.
    """
    try:
        shape = shape_of(config_of(value_of(argv, "--hf-checkpoint") or ""))
    except ConfigError as unknown:
        return MemoryReport(table=f"memory is not estimated: {unknown}")
    with boundary(ConfigError, f"{ENGINE_SHARE} of the command line"):
        share = float(value_of(argv, ENGINE_SHARE) or 0.9)
    remarks = ["training and engines take turns on the same GPUs"] if layout.colocate else []
    if estimator_named(value_of(argv, OPTION) or "grpo").critic:
        remarks.append("PPO's critic is not in the estimate: it needs as much as training, on its own GPUs or in turn")
    sizes = sizes_of(argv, layout)
    rollouts = number(argv, "--rollout-batch-size") * number(argv, "--n-samples-per-prompt")
    engines, one = max(1, layout.rollout // sizes.engine), engine_memory(shape, sizes)
    room = -(-rollouts // engines)
    if gpus:
        room = min(room, max(0, int((share * free_on(gpus) - one.weights) // (one.total - one.weights))))
        held = min(room * engines, rollouts)
        remarks.append(
            f"the engines hold {held} rollouts of {sizes.context} ids at a time, of {rollouts} in a step"
            f"{'; others wait' if held < rollouts else ''}"
        )
    engine = Phase(
        name="engine",
        memory=partial(engine_memory, shape),
        sizes=structs.replace(sizes, rollouts=max(1, room)),
        least=sizes,
        share=share,
    )
    training = Phase(name="training", memory=partial(training_memory, shape), sizes=sizes, least=sizes)
    return report_of((training, engine), _changes(argv, sizes, layout), gpus, remarks, counted=shape.counted)


def sizes_of(argv: Sequence[str], layout: Layout) -> Sizes:
    """Return the sizes of a run with one rollout in each engine."""
    sharded, packed = (
        value_of(argv, "--train-backend") == "fsdp",
        value_of(argv, "--use-dynamic-batch-size") is not None,
    )
    recompute = value_of(argv, "--gradient-checkpointing" if sharded else "--recompute-granularity")
    megatron = MEGATRON if value_of(argv, "--no-bias-swiglu-fusion") is None else UNFUSED_MLP
    tensor = 1 if sharded else number(argv, TENSOR_PARALLEL)
    experts = number(argv, "--expert-model-parallel-size") * number(argv, "--expert-tensor-parallel-size", tensor)
    return Sizes(
        precision=FSDP if sharded else megatron,
        context=number(argv, CONTEXT),
        tokens=number(argv, PER_GPU) if packed else 0,
        rows=1 if packed else number(argv, "--micro-batch-size"),
        split=number(argv, CONTEXT_PARALLEL),
        gpus=layout.actor * layout.nodes,
        tensor=tensor,
        pipeline=number(argv, PIPELINE_PARALLEL),
        expert=experts,
        sharded=sharded,
        sequence=value_of(argv, SEQUENCE_PARALLEL) is not None,
        recompute=recompute in ("", "full"),
        lora_rank=number(argv, LORA, 0),
        offloaded=value_of(argv, "--fsdp-cpu-offload" if sharded else "--optimizer-cpu-offload") is not None,
        engine=number(argv, ENGINE_GPUS),
        value_bytes=1 if (value_of(argv, "--sglang-kv-cache-dtype") or "").startswith("fp8") else 2,
    )


def _changes(argv: Sequence[str], sizes: Sizes, layout: Layout) -> Changes:
    """Return the changes to propose, the mildest of each option first."""

    def wider(size: int) -> dict[str, int]:
        """Return the sizes that `--tp` sets: FSDP splits no layer."""
        return (
            {"engine": size} if sizes.sharded else {"engine": size, "tensor": size, "expert": max(size, sizes.expert)}
        )

    def more(factor: int) -> str:
        gpus, option = layout.actor * factor, "--num-gpus" if layout.colocate else "--actor-gpus"
        fits = layout.nodes == 1 and gpus <= NODE
        return f"{option} {gpus}" if fits else f"--actor-nodes {layout.nodes * factor}"

    divided = layout.rollout if sizes.sharded else math.gcd(layout.rollout, layout.actor)
    adapters = value_of(argv, "--train-backend") == "megatron" and not sizes.lora_rank
    offload = "--fsdp-cpu-offload" if sizes.sharded else "--optimizer-cpu-offload"
    return [
        *((f"--max-tokens-per-gpu {size}", {"tokens": size}) for size in halves(sizes.tokens, LEAST_TOKENS)),
        *((f"--max-context-len {size}", {"context": size}) for size in halves(sizes.context, LEAST_TOKENS)),
        *((f"--tp {size}", wider(size)) for size in (2, 4, NODE) if size > sizes.engine and divided % size == 0),
        *((more(factor), {"gpus": sizes.gpus * factor}) for factor in (2, 4, 8)),
        (f"-- {offload}", {"offloaded": True}),
        *([("-- --lora-rank 32", {"lora_rank": 32})] if adapters else []),
    ]
