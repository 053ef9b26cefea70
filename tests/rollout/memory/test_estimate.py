"""Estimates of memory: sums by hand, more work never needs less, and the verdict on the GPUs that are there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_rollout.gpus import Gpu
from orl_rollout.memory.estimate import FSDP, GIB, MEGATRON, Memory, Phase, Update, report_of, training_memory
from orl_rollout.memory.model import ModelShape, shape_of

from tests.kit.model_shapes import QWEN3

SHAPES = {name: shape_of(config) for name, config in QWEN3.items()}
UPDATE = Update(tokens=8192, precision=MEGATRON)
WHOLE = structs.replace(UPDATE, precision=FSDP, gpus=8, sharded=True)

shapes = st.sampled_from(list(SHAPES.values()))
powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def updates(draw: st.DrawFn) -> Update:
    tensor, pipeline, data = draw(powers), draw(powers), draw(powers)
    return Update(
        tokens=draw(st.integers(1, 65_536)),
        precision=draw(st.sampled_from([MEGATRON, FSDP])),
        recompute=draw(st.booleans()),
        lora_rank=draw(st.sampled_from([0, 8, 64])),
        gpus=tensor * pipeline * data,
        tensor=tensor,
        pipeline=pipeline,
        expert_tensor=tensor,
        sharded=draw(st.booleans()) and tensor * pipeline == 1,
        sequence=draw(st.booleans()),
    )


@pytest.mark.parametrize(("replicas", "per_parameter"), [(1, 18), (4, 6 + 12 / 4), (8, 6 + 12 / 8)])
def test_megatron_keeps_18_bytes_or_6_and_12_shared(replicas: int, per_parameter: float):
    memory = training_memory(SHAPES["8B"], structs.replace(UPDATE, gpus=replicas))
    kept = memory.weights + memory.gradients + memory.optimizer
    assert kept / SHAPES["8B"].parameters == pytest.approx(per_parameter, rel=1e-6)


def test_fsdp_divides_all_states():
    shape, memory = SHAPES["8B"], training_memory(SHAPES["8B"], WHOLE)
    assert (memory.gradients + memory.optimizer) * 8 == pytest.approx(12 * shape.parameters, rel=1e-6)
    gathered = 2 * (2 * shape.embedding + 2 * shape.block_parameters / shape.layers)
    assert memory.weights == pytest.approx(4 * shape.parameters / 8 + gathered, rel=1e-6)


def test_adapters_train_alone():
    whole = training_memory(SHAPES["8B"], UPDATE)
    adapted = training_memory(SHAPES["8B"], structs.replace(UPDATE, lora_rank=16))
    trained = 16 * SHAPES["8B"].adapted
    assert (adapted.weights, adapted.gradients, adapted.optimizer) == (
        whole.weights + 2 * trained,
        4 * trained,
        12 * trained,
    )


def test_experts_are_divided_apart():
    shape = SHAPES["30B-A3B"]
    memory = training_memory(shape, structs.replace(UPDATE, gpus=8, tensor=2, expert=4, expert_tensor=1))
    dense = (shape.parameters - shape.expert_parameters) / 2
    assert memory.gradients == pytest.approx(4 * (dense + shape.expert_parameters / 4), rel=1e-6)
    assert memory.optimizer == pytest.approx(12 * (dense / 4 + shape.expert_parameters / 4 / 2), rel=1e-6)


def test_offloaded_states_are_not_on_the_gpu():
    assert training_memory(SHAPES["4B"], structs.replace(UPDATE, offloaded=True)).optimizer == 0
    memory = training_memory(SHAPES["4B"], structs.replace(WHOLE, all_offloaded=True))
    assert memory.gradients == memory.optimizer == 0
    assert 0 < memory.weights < training_memory(SHAPES["4B"], WHOLE).weights


def test_cache_of_a_token_is_that_of_the_heads_on_a_gpu():
    """A note on one GPU has 117 GB for 128 rows of 8,000 ids and a 0.6B model: 114,688 bytes an id in bf16."""
    assert SHAPES["0.6B"].token_bytes() == 114_688
    layers = 48 * 2 * 128 * 2
    assert [SHAPES["30B-A3B"].token_bytes(size) for size in (1, 2, 4, 8)] == [layers * heads for heads in (4, 2, 1, 1)]
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    shape = shape_of({**QWEN3["8B"], "model_type": "deepseek_v3", **latent})
    assert shape.token_bytes(1) == shape.token_bytes(8) == 36 * 576 * 2


@given(name=st.sampled_from(list(QWEN3)), update=updates(), factor=st.integers(2, 4))
def test_more_work_never_needs_less(name: str, update: Update, factor: int):
    before = training_memory(SHAPES[name], update)
    more = training_memory(SHAPES[name], structs.replace(update, tokens=update.tokens * factor))
    assert below(before, more)
    assert more.activations > before.activations
    assert more.logits > before.logits
    sizes = [training_memory(SHAPES[name], structs.replace(update, recompute=less)).total for less in (True, False)]
    assert sizes[0] <= sizes[1]
    deeper: dict[str, Any] = {**QWEN3[name], "num_hidden_layers": QWEN3[name]["num_hidden_layers"] * factor}
    assert below(before, training_memory(shape_of(deeper), update))


@given(shape=shapes, update=updates())
def test_more_gpus_never_need_more(shape: ModelShape, update: Update):
    before = training_memory(shape, update)
    tensor = {"tensor": 2 * update.tensor, "expert_tensor": 2 * update.expert_tensor}
    changes = [{}] if update.sharded else [{}, tensor, {"pipeline": 2 * update.pipeline}]
    for change in changes:
        assert below(training_memory(shape, structs.replace(update, gpus=2 * update.gpus, **change)), before)


def below(less: Memory, more: Memory) -> bool:
    """Tell whether no part of `less` is larger, but for the rounding of each."""
    return all(a <= b + 1 for a, b in zip(structs.astuple(less), structs.astuple(more), strict=True))


def phase(needed: float, *, share: float = 1.0, levers: list[list[tuple[str, int]]] | None = None) -> Phase:
    size = round(needed * GIB)
    return Phase(name="training", memory=Memory(weights=size), needed=size, share=share, levers=levers or [])


def test_gpu_that_does_not_answer_counts_as_empty():
    found = report_of([phase(70)], [Gpu(total=80 * GIB)])
    assert (found.problems, found.notes) == ((), ())
    assert "free memory is not known" in found.table


def test_mildest_change_of_each_option_is_proposed():
    levers = [
        [("--a 2", 60 * GIB), ("--a 1", 30 * GIB)],
        [("--b 4", 75 * GIB), ("--b 2", 70 * GIB)],
        [("--c", 90 * GIB)],
    ]
    for free, proposed in ((72, "--a 2"), (79, "--a 2; --b 4")):
        (told,) = report_of([phase(100, levers=levers)], [Gpu(total=80 * GIB, free=free * GIB)]).problems
        assert told.partition("would fit: ")[2] == proposed


def test_share_limits_a_note_and_not_a_problem():
    gpu = Gpu(total=80 * GIB, free=80 * GIB)
    (told,) = report_of([phase(60, share=0.7)], [gpu]).notes
    assert "0.7" in told
    assert report_of([phase(50, share=0.7)], [gpu]).notes == ()


@given(needed=st.floats(0, 200), total=st.integers(1, 141), used=st.floats(0, 1))
def test_problem_exceeds_the_gpu_and_note_exceeds_free_memory(needed: float, total: int, used: float):
    gpu = Gpu(total=total * GIB, free=round(total * GIB * (1 - used)))
    found = report_of([phase(needed)], [gpu])
    assert len(found.problems) + len(found.notes) <= 1
    assert bool(found.problems) == (round(needed * GIB) > 1.15 * gpu.total)
    assert bool(found.problems or found.notes) == (round(needed * GIB) > min(gpu.free or 0, 1.15 * gpu.total))
