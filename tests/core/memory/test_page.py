"""The examples of docs/memory.md are what the code computes."""

from __future__ import annotations

from pathlib import Path

from orl_core.memory import EngineLoad, Recipe, Sharding, rollouts_that_fit, shape_of, token_bytes, training_memory
from orl_core.memory.training import EAGER, FP32_ADAMW, FUSED, MEGATRON
from orl_trl.run_plan.gpu_memory import OneGpu, training

from tests.kit.model_shapes import QWEN3

ROOT = Path(__file__).parents[3]
TOKENS, GIB = 8192, 2**30


def row(name: str) -> str:
    """Return a model's row of the table."""
    shape = shape_of(QWEN3[name])
    load = EngineLoad(rollouts=1, context=TOKENS)
    split = Sharding(gpus=8, tensor=4, expert_tensor=4)
    whole = Sharding(gpus=8, whole=True)
    recipe = Recipe(tokens=TOKENS, parameter=MEGATRON, kernels=FUSED)
    sums = [
        training_memory(shape, split, recipe),
        training_memory(shape, split, Recipe(tokens=TOKENS, parameter=MEGATRON, kernels=FUSED, lora_rank=32)),
        training_memory(shape, whole, Recipe(tokens=TOKENS, parameter=FP32_ADAMW, kernels=EAGER)),
        training(shape, OneGpu(rows=1, rollouts=1, context=TOKENS, turn=1)),
    ]
    cells = [
        f"Qwen3-{name}",
        f"{shape.parameters / 1e9:.2f} B",
        *(f"{one.total / GIB:.1f}" for one in sums),
        f"{token_bytes(shape, load) / 1024:.0f} KiB",
        str(rollouts_that_fit(shape, load, 0.7 * 80 * GIB)),
    ]
    return f"| {' | '.join(cells)} |"


def test_examples_are_computed():
    page = (ROOT / "docs" / "memory.md").read_text("utf-8")
    assert "\n".join(row(name) for name in QWEN3) in page
