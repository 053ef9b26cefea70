"""Estimates of memory: parameters near the published ones, sums by hand, monotony, and the verdict on the GPUs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.gpus import Gpu
from orl_rollout.memory import (
    COUNTED,
    FSDP,
    GIB,
    MEGATRON,
    Memory,
    MemoryReport,
    Phase,
    Sizes,
    report_of,
    shape_of,
    training_memory,
)

from tests.kit.model_shapes import PUBLISHED, QWEN3

SHAPES = {name: shape_of(config) for name, config in QWEN3.items()}
UPDATE = Sizes(tokens=8192, context=8192, precision=MEGATRON)
WHOLE = structs.replace(UPDATE, precision=FSDP, gpus=8, sharded=True)

names = st.sampled_from(list(SHAPES))
powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def updates(draw: st.DrawFn) -> Sizes:
    tensor, pipeline, data = draw(powers), draw(powers), draw(powers)
    return Sizes(
        tokens=draw(st.integers(1, 65_536)),
        context=1,
        precision=draw(st.sampled_from([MEGATRON, FSDP])),
        recompute=draw(st.booleans()),
        lora_rank=draw(st.sampled_from([0, 8, 64])),
        gpus=tensor * pipeline * data,
        tensor=tensor,
        pipeline=pipeline,
        expert=tensor,
        sharded=draw(st.booleans()) and tensor * pipeline == 1,
        sequence=draw(st.booleans()),
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_within_a_twentieth_of_the_published_ones(name: str):
    config, published = PUBLISHED[name]
    assert shape_of(config).parameters / 1e9 == pytest.approx(published, rel=0.05)


def test_families_that_may_be_refused_are_compared():
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == COUNTED
    assert not shape_of({**QWEN3["4B"], "model_type": "gpt_neox"}).counted


def test_images_and_text_count_by_the_text():
    assert shape_of({"model_type": "whatever_vl", "text_config": QWEN3["4B"]}) == SHAPES["4B"]


@pytest.mark.parametrize("changes", [{"hidden_size": None}, {"num_hidden_layers": "two"}])
def test_config_without_a_size_is_refused(changes: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        shape_of({**QWEN3["4B"], **changes})


@pytest.mark.parametrize(("replicas", "per_parameter"), [(1, 18), (4, 6 + 12 / 4), (8, 6 + 12 / 8)])
def test_megatron_keeps_18_bytes_or_6_and_12_shared(replicas: int, per_parameter: float):
    memory = training_memory(SHAPES["8B"], structs.replace(UPDATE, gpus=replicas))
    kept = memory.weights + memory.gradients + memory.optimizer
    assert kept / SHAPES["8B"].parameters == pytest.approx(per_parameter, rel=1e-6)


def test_fsdp_divides_all_states():
    shape, memory = SHAPES["8B"], training_memory(SHAPES["8B"], WHOLE)
    assert (memory.gradients + memory.optimizer) * 8 == pytest.approx(12 * shape.parameters, rel=1e-6)
    gathered = 2 * (2 * shape.embedding + 2 * shape.blocks / shape.layers)
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
    memory = training_memory(shape, structs.replace(UPDATE, gpus=8, tensor=2, expert=4))
    dense = (shape.parameters - shape.experts) / 2
    assert memory.gradients == pytest.approx(4 * (dense + shape.experts / 4), rel=1e-6)
    assert memory.optimizer == pytest.approx(12 * (dense / 4 + shape.experts / 4 / 2), rel=1e-6)


def test_offloaded_states_are_not_on_the_gpu():
    assert training_memory(SHAPES["4B"], structs.replace(UPDATE, offloaded=True)).optimizer == 0
    memory = training_memory(SHAPES["4B"], structs.replace(WHOLE, offloaded=True))
    assert memory.gradients == memory.optimizer == 0
    assert 0 < memory.weights < training_memory(SHAPES["4B"], WHOLE).weights


def test_cache_of_a_token_is_that_of_the_heads_on_a_gpu():
    """A note on one GPU has 117 GB for 128 rows of 8,000 ids and a 0.6B model: 114,688 bytes an id in bf16."""
    assert SHAPES["0.6B"].token_bytes() == 114_688
    layers = 48 * 2 * 128 * 2
    assert [SHAPES["30B-A3B"].token_bytes(size) for size in (1, 2, 4, 8)] == [layers * heads for heads in (4, 2, 1, 1)]
    latent = shape_of(PUBLISHED["DeepSeek-V3"][0])
    assert latent.token_bytes(1) == latent.token_bytes(8) == 61 * 576 * 2


@given(name=names, update=updates(), factor=st.integers(2, 4))
def test_more_work_never_needs_less(name: str, update: Sizes, factor: int):
    before = training_memory(SHAPES[name], update)
    more = training_memory(SHAPES[name], structs.replace(update, tokens=update.tokens * factor))
    assert below(before, more)
    assert more.activations > before.activations
    sizes = [training_memory(SHAPES[name], structs.replace(update, recompute=less)).total for less in (True, False)]
    assert sizes[0] <= sizes[1]
    deeper: dict[str, Any] = {**QWEN3[name], "num_hidden_layers": QWEN3[name]["num_hidden_layers"] * factor}
    assert below(before, training_memory(shape_of(deeper), update))


@given(name=names, update=updates())
def test_more_gpus_never_need_more(name: str, update: Sizes):
    before = training_memory(SHAPES[name], update)
    tensor = {"tensor": 2 * update.tensor, "expert": 2 * update.expert}
    changes = [{}] if update.sharded else [{}, tensor, {"pipeline": 2 * update.pipeline}]
    for change in changes:
        assert below(training_memory(SHAPES[name], structs.replace(update, gpus=2 * update.gpus, **change)), before)


def below(less: Memory, more: Memory) -> bool:
    """Tell whether no part of `less` is larger, but for the rounding of each."""
    return all(a <= b + 1 for a, b in zip(structs.astuple(less), structs.astuple(more), strict=True))


def reported(needed: float, gpu: Gpu, *, share: float = 1.0, changes: tuple[tuple[str, str, int], ...] = ()):
    """Return the report of one phase that needs `needed` GiB; `changes` are words, the size, and GiB with it."""

    def memory(sizes: Sizes) -> Memory:
        return Memory(weights=next((size for size in (sizes.tokens, sizes.rows) if size > 1), round(needed * GIB)))

    sizes = Sizes(context=1)
    phase = Phase(name="training", memory=memory, sizes=sizes, least=sizes, share=share)
    return report_of([phase], [(words, {field: size * GIB}) for words, field, size in changes], [gpu])


def test_gpu_that_does_not_answer_counts_as_empty():
    assert not found(reported(70, Gpu(total=80 * GIB)))


def test_mildest_change_of_each_size_is_proposed():
    changes = (("--a 2", "tokens", 60), ("--a 1", "tokens", 30), ("--b 4", "rows", 75), ("--b 2", "rows", 70))
    for free, proposed in ((72, "--a 2"), (79, "--a 2; --b 4")):
        (told,) = reported(100, Gpu(total=80 * GIB, free=free * GIB), changes=changes).problems
        assert told.partition("would fit: ")[2] == proposed


def test_share_limits_a_note_and_not_a_problem():
    gpu = Gpu(total=80 * GIB, free=80 * GIB)
    (told,) = reported(60, gpu, share=0.7).notes
    assert "0.7" in told
    assert not found(reported(50, gpu, share=0.7))


@given(needed=st.floats(0, 200), total=st.integers(1, 141), used=st.floats(0, 1))
def test_problem_exceeds_the_gpu_and_note_exceeds_free_memory(needed: float, total: int, used: float):
    gpu = Gpu(total=total * GIB, free=math.floor(total * GIB * (1 - used)))
    report = reported(needed, gpu)
    assert len(found(report)) <= 1
    assert bool(report.problems) == (round(needed * GIB) > 1.15 * gpu.total)
    assert bool(found(report)) == (round(needed * GIB) > min(gpu.free or 0, 1.15 * gpu.total))


def found(report: MemoryReport) -> tuple[str, ...]:
    return report.problems + report.notes
