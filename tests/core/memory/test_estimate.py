"""Estimates of memory: known figures, sums by hand, and that more of anything never needs less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.memory import (
    EngineLoad,
    Memory,
    ModelShape,
    Recipe,
    Sharding,
    engine_memory,
    rollouts_that_fit,
    shape_of,
    token_bytes,
    training_memory,
)
from orl_core.memory.training import FP32_ADAMW, FUSED, MEGATRON

from tests.kit.model_shapes import QWEN3

SHAPES = {name: shape_of(config) for name, config in QWEN3.items()}
RECIPE = Recipe(tokens=8192, parameter=MEGATRON, kernels=FUSED)

shapes = st.sampled_from(list(SHAPES.values()))
powers = st.sampled_from([1, 2, 4, 8])
recipes = st.builds(
    Recipe,
    tokens=st.integers(1, 65_536),
    parameter=st.sampled_from([MEGATRON, FP32_ADAMW]),
    kernels=st.just(FUSED),
    recompute=st.booleans(),
    lora_rank=st.sampled_from([0, 8, 64]),
)


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    tensor, pipeline, data = draw(powers), draw(powers), draw(powers)
    return Sharding(
        gpus=tensor * pipeline * data,
        tensor=tensor,
        pipeline=pipeline,
        expert_tensor=tensor,
        whole=draw(st.booleans()) and tensor * pipeline == 1,
        sequence=draw(st.booleans()),
    )


def test_cache_of_128_rollouts_is_117_gb():
    """A note on one GPU has 117 GB for 128 rows of 8,000 ids and a 0.6B model: 114,688 bytes an id in bf16."""
    load = EngineLoad(rollouts=128, context=8000)
    assert token_bytes(SHAPES["0.6B"], load) == 114_688
    assert engine_memory(SHAPES["0.6B"], load).kv_cache / 1e9 == pytest.approx(117, rel=0.01)


@pytest.mark.parametrize(("replicas", "per_parameter"), [(1, 18), (4, 6 + 12 / 4), (8, 6 + 12 / 8)])
def test_megatron_keeps_18_bytes_or_6_and_12_shared(replicas: int, per_parameter: float):
    shape = SHAPES["8B"]
    memory = training_memory(shape, Sharding(gpus=replicas), RECIPE)
    kept = memory.weights + memory.gradients + memory.optimizer
    assert kept / shape.parameters == pytest.approx(per_parameter, rel=1e-6)


def test_fsdp_divides_all_states():
    shape, recipe = SHAPES["8B"], structs.replace(RECIPE, parameter=FP32_ADAMW)
    memory = training_memory(shape, Sharding(gpus=8, whole=True), recipe)
    assert (memory.gradients + memory.optimizer) * 8 == pytest.approx(12 * shape.parameters, rel=1e-6)
    gathered = 2 * (2 * shape.embedding + 2 * shape.block_parameters / shape.layers)
    assert memory.weights == pytest.approx(4 * shape.parameters / 8 + gathered, rel=1e-6)


def test_adapters_train_alone():
    shape = SHAPES["8B"]
    whole = training_memory(shape, Sharding(), RECIPE)
    adapted = training_memory(shape, Sharding(), structs.replace(RECIPE, lora_rank=16))
    assert adapted.gradients == 4 * shape.lora_parameters(16)
    assert adapted.optimizer == 12 * shape.lora_parameters(16)
    assert adapted.weights == whole.weights + 2 * shape.lora_parameters(16)


def test_experts_are_divided_apart():
    shape = SHAPES["30B-A3B"]
    memory = training_memory(shape, Sharding(gpus=8, tensor=2, expert=4, expert_tensor=1), RECIPE)
    dense = (shape.parameters - shape.expert_parameters) / 2
    assert memory.gradients == pytest.approx(4 * (dense + shape.expert_parameters / 4), rel=1e-6)
    assert memory.optimizer == pytest.approx(12 * (dense / 4 + shape.expert_parameters / 4 / 2), rel=1e-6)


def test_offloaded_states_are_not_on_the_gpu():
    shape = SHAPES["4B"]
    assert training_memory(shape, Sharding(), structs.replace(RECIPE, offloaded=True)).optimizer == 0
    every = structs.replace(RECIPE, all_offloaded=True)
    memory = training_memory(shape, Sharding(gpus=2, whole=True), every)
    assert memory.gradients == memory.optimizer == 0
    assert 0 < memory.weights < training_memory(shape, Sharding(gpus=2, whole=True), RECIPE).weights


def test_tensor_parallel_engine_keeps_a_head():
    shape = SHAPES["30B-A3B"]
    tokens = {size: token_bytes(shape, EngineLoad(rollouts=1, context=1, tensor=size)) for size in (1, 2, 4, 8)}
    assert tokens == {1: 48 * 2 * 4 * 128 * 2, 2: 48 * 2 * 2 * 128 * 2, 4: 48 * 2 * 128 * 2, 8: 48 * 2 * 128 * 2}


def test_latent_cache_is_not_divided():
    config: dict[str, Any] = {
        **QWEN3["8B"],
        "model_type": "deepseek_v3",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    shape = shape_of(config)
    assert {token_bytes(shape, EngineLoad(rollouts=1, context=1, tensor=size)) for size in (1, 8)} == {36 * 576 * 2}


@given(shape=shapes, sharding=shardings(), recipe=recipes, factor=st.integers(2, 4))
def test_more_work_never_needs_less(shape: ModelShape, sharding: Sharding, recipe: Recipe, factor: int):
    before = training_memory(shape, sharding, recipe)
    more = training_memory(shape, sharding, structs.replace(recipe, tokens=recipe.tokens * factor))
    assert below(before, more)
    assert more.activations > before.activations
    assert more.logits > before.logits
    plain = training_memory(shape, sharding, structs.replace(recipe, recompute=False))
    assert training_memory(shape, sharding, structs.replace(recipe, recompute=True)).total <= plain.total
    deeper = structs.replace(shape, layers=shape.layers * factor)
    assert below(before, training_memory(deeper, sharding, recipe))


@given(shape=shapes, sharding=shardings(), recipe=recipes)
def test_more_gpus_never_need_more(shape: ModelShape, sharding: Sharding, recipe: Recipe):
    before = training_memory(shape, sharding, recipe)
    assert below(training_memory(shape, structs.replace(sharding, gpus=2 * sharding.gpus), recipe), before)
    if sharding.whole:
        return
    wider = structs.replace(
        sharding, gpus=2 * sharding.gpus, tensor=2 * sharding.tensor, expert_tensor=2 * sharding.expert_tensor
    )
    assert below(training_memory(shape, wider, recipe), before)
    deeper = structs.replace(sharding, gpus=2 * sharding.gpus, pipeline=2 * sharding.pipeline)
    assert below(training_memory(shape, deeper, recipe), before)


@given(
    shape=shapes,
    load=st.builds(EngineLoad, rollouts=st.integers(1, 512), context=st.integers(1, 131_072), tensor=powers),
)
def test_what_fits_an_engine_is_its_inverse(shape: ModelShape, load: EngineLoad):
    memory = engine_memory(shape, load)
    assert rollouts_that_fit(shape, load, memory.weights + memory.kv_cache + 1) == load.rollouts
    assert rollouts_that_fit(shape, load, memory.weights + memory.kv_cache - 2) == load.rollouts - 1
    assert rollouts_that_fit(shape, load, 0) == 0
    assert below(memory, engine_memory(shape, structs.replace(load, rollouts=load.rollouts + 1)))
    assert below(engine_memory(shape, structs.replace(load, tensor=2 * load.tensor)), memory)


def below(less: Memory, more: Memory) -> bool:
    """Tell whether no part of `less` is larger, but for the rounding of each."""
    return all(a <= b + 1 for a, b in zip(structs.astuple(less), structs.astuple(more), strict=True))
