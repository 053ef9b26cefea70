"""The estimate of a run on one GPU against torch's own accounting of memory, and what is chosen by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from orl_core.errors import ConfigError
from orl_local import scoring
from orl_local.engine import in_process_engine
from orl_local.engine.engine_plan import EngineChoice
from orl_local.engine.lora import with_adapters
from orl_local.memory import (
    BATCH_TOKENS,
    CHUNK_BYTES,
    UNKNOWN,
    USED,
    fitted,
    report,
    sampling,
    sizes_of,
    training,
)
from orl_local.planning import check, planned
from orl_local.settings import Settings, settings_of
from orl_rollout.gpus import Gpu
from orl_rollout.memory import AUTOCAST, GIB, MemoryReport, Sizes, shape_of
from orl_rollout.run_folder.contract import Run
from orl_testing.tinker.model import CACHE
from transformers import AutoConfig, AutoModelForCausalLM

from tests.kit import nvml
from tests.kit.model_shapes import QWEN3
from tests.local.fakes import described, make_run

Caplog = pytest.LogCaptureFixture
GPU = Gpu(total=80 * GIB, free=79 * GIB)
TINY: dict[str, Any] = {
    **QWEN3["0.6B"],
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_gradients_and_moments_are_those_of_torch(rank: int):
    """A real backward pass and a real step of AdamW, within the norms, which are not counted."""
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), dtype=torch.float32)
    if rank:
        model = with_adapters(model, rank)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    moments = sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    sizes = Sizes(context=4, precision=AUTOCAST, lora_rank=rank)
    estimate = training(shape_of(TINY), sizes)
    assert (estimate.weights, estimate.gradients, estimate.optimizer) == pytest.approx(
        (sum(one.nbytes for one in model.parameters()), sum(one.grad.nbytes for one in trained), moments), rel=0.01
    )
    assert sampling(shape_of(TINY), sizes).weights == estimate.weights


def test_cache_of_an_answer_is_that_of_transformers():
    """The in-process engine keeps keys and values in fp32."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), dtype=torch.float32)
    with torch.no_grad():
        cache: Any = model(input_ids=torch.zeros(3, 40, dtype=torch.long), use_cache=True)[CACHE]
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert sampling(shape_of(TINY), Sizes(precision=AUTOCAST, rollouts=3, context=40, turn=8)).kv_cache == kept


def test_batch_is_one_context_or_the_rows_that_a_batch_holds():
    shape = shape_of(TINY)
    sizes = Sizes(precision=AUTOCAST, rollouts=8, context=BATCH_TOKENS * 2, turn=256)
    long, wide = sampling(shape, sizes), sampling(shape, structs.replace(sizes, context=BATCH_TOKENS // 4))
    assert long.kv_cache == 2 * BATCH_TOKENS * shape.token_bytes(value_bytes=4)
    assert wide.kv_cache == (BATCH_TOKENS + 8 * 256) * shape.token_bytes(value_bytes=4)


def settled(tmp_path: Path, **trainer: Any) -> tuple[Run, Settings]:
    """Return a run of 128 rollouts of a real model, and its settings."""
    run = make_run(tmp_path, "m", rollout_batch_size=8, n_samples=16, **trainer)
    return run, settings_of(run.config, 10**9)


def reported(tmp_path: Path, name: str, gpu: Gpu = GPU, share: float | None = None, **trainer: Any) -> MemoryReport:
    """Return the report of 128 rollouts of a published model on a GPU, with activations that are computed again."""
    run, settings = settled(tmp_path, checkpointing="on", **trainer)
    return report(run.config, settings, shape_of(QWEN3[name]), (gpu,), engine_with(share))


def engine_with(share: float | None = None) -> EngineChoice:
    """Return an SGLang with this share of a GPU that trains; None: the model itself."""
    options = (f"--mem-fraction-static={share}",)
    return EngineChoice(engine="sglang" if share else "transformers", reason="", options=options)


def test_adapters_or_smaller_moments_need_less(tmp_path: Path):
    """A 4B model with adapters trains within 80 GB, and all of its weights do not."""
    gpu = Gpu(total=80 * 10**9, free=79 * 10**9)
    assert "--lora-rank 32" in " ".join(reported(tmp_path, "4B", gpu).notes)
    smaller: dict[str, Any]
    for smaller in ({"lora_rank": 32}, {"optimizer": "adafactor"}):
        notes = reported(tmp_path, "4B", gpu, **smaller).notes
        assert not any(note.startswith("training") for note in notes)


def test_weights_that_cannot_fit_are_a_problem(tmp_path: Path):
    found = reported(tmp_path, "8B")
    (told,) = found.problems
    assert told.startswith("training needs about 13")
    assert found.notes[0].startswith("rollouts needs about")


def test_rows_that_may_outgrow_the_gpu_are_a_note_with_what_fits(tmp_path: Path):
    """Rows may end early, so that the run is not refused."""
    gpu = Gpu(total=40 * GIB, free=39 * GIB)
    found = reported(tmp_path, "0.6B", gpu, max_tokens_per_gpu=1 << 18)
    training_told, rollouts_told = found.notes
    assert found.problems == ()
    assert "with rollouts of 32768 ids" in training_told
    assert "rollouts a step" in rollouts_told
    option, value = training_told.partition("would fit: ")[2].partition(";")[0].split()
    assert option == "--max-tokens-per-gpu"
    (told,) = reported(tmp_path, "0.6B", gpu, max_tokens_per_gpu=int(value)).notes
    assert told == rollouts_told


def test_training_refuses_what_cannot_fit(tmp_path: Path, caplog: Caplog):
    for name, told in (("8B", "training needs"), ("0.6B", "")):
        run = make_run(tmp_path / "run", described(tmp_path, QWEN3[name]), max_tokens_per_gpu=1 << 18)
        with nvml.driver(nvml.Gpu("GPU-a", gib=70.0)):
            plan = planned(run)
        if told:
            with pytest.raises(ConfigError, match=told):
                check(plan)
            assert not caplog.messages
        else:
            check(plan)
            assert any(one.startswith("training needs") for one in caplog.messages)


def test_unknown_model_is_said(tmp_path: Path):
    run, settings = settled(tmp_path)
    found = report(run.config, settings, None, (), engine_with())
    assert found.table == UNKNOWN
    assert (found.problems, found.notes) == ((), ())


def test_sglang_has_its_share_beside_weights_and_optimizer(tmp_path: Path):
    gpu = Gpu(total=24 * GIB, free=24 * GIB)
    found = reported(tmp_path, "0.6B", gpu, 0.8)
    assert not found.problems
    assert "--sglang-mem-fraction-static 0." in " ".join(found.notes)
    assert not any("rollouts" in note for note in reported(tmp_path, "0.6B", gpu, 0.5).notes)
    assert reported(tmp_path, "0.6B", Gpu(total=4 * GIB, free=4 * GIB), 0.5).problems


@pytest.mark.parametrize(
    ("gib", "share", "recompute", "releases"),
    [(240, 0.5, False, False), (140, 0.5, False, True), (80, 0.5, True, False), (80, 0.9, True, True)],
)
def test_largest_micro_batches_that_fit_are_chosen(
    tmp_path: Path, gib: int, share: float, recompute: bool, releases: bool
):
    """Activations are kept if they fit, and the SGLang next to it gives its memory back if it must."""
    run, settings = settled(tmp_path)
    shape, gpu = shape_of(QWEN3["0.6B"]), Gpu(total=gib * GIB)
    chosen, _, gives = fitted(run.config, settings, shape, (gpu,), 1, engine_with(share))
    assert (chosen.recompute, gives) == (recompute, releases)
    room = USED if releases else USED - share
    assert training(shape, sizes_of(run.config, chosen)).total <= room * gpu.total


@pytest.mark.parametrize(
    ("name", "trainer", "shards"),
    [
        ("0.6B", {}, 1),
        ("0.6B", {"sharding": "fsdp"}, 4),
        ("8B", {}, 4),
        ("8B", {"sharding": "none"}, 1),
        ("8B", {"lora_rank": 32}, 1),
        ("8B", {"optimizer": "adafactor"}, 1),
    ],
)
def test_weights_are_divided_if_they_do_not_fit(tmp_path: Path, name: str, trainer: dict[str, Any], shards: int):
    run, settings = settled(tmp_path, **trainer)
    shape = shape_of(QWEN3[name])
    assert fitted(run.config, settings, shape, (GPU,), 4, engine_with(0.3))[1] == shards
    one, part = (training(shape, sizes_of(run.config, settings, count)) for count in (1, shards))
    assert (part.gradients, part.optimizer) == pytest.approx((one.gradients / shards, one.optimizer / shards))
    problems = report(run.config, settings, shape, (GPU,), engine_with(0.3), shards).problems
    assert bool(problems) is (trainer == {"sharding": "none"})


def test_engine_that_plays_meanwhile_gives_nothing_back(tmp_path: Path):
    run, settings = settled(tmp_path, asynchronous=True)
    shape = shape_of(QWEN3["0.6B"])
    chosen, _, gives = fitted(run.config, settings, shape, (Gpu(total=140 * GIB),), 1, engine_with(0.5))
    assert (chosen.recompute, gives) == (True, False)


def test_settings_that_are_given_stay(tmp_path: Path):
    run, settings = settled(tmp_path)
    shape = shape_of(QWEN3["0.6B"])
    assert fitted(run.config, settings, shape, (), 1, engine_with())[0] == settings
    assert fitted(run.config, settings, None, (GPU,), 1, engine_with())[0] == structs.replace(settings, recompute=True)
    for option, again, tokens in (("on", True, 999), ("off", False, 10**6)):
        run, settings = settled(tmp_path, checkpointing=option, max_tokens_per_gpu=tokens)
        chosen, *_ = fitted(run.config, settings, shape, (GPU,), 1, engine_with(0.5))
        assert (chosen.recompute, chosen.tokens) == (again, tokens)


def test_sizes_are_those_of_the_code_that_they_estimate():
    assert in_process_engine.BATCH_TOKENS == BATCH_TOKENS
    assert scoring.CHUNK * 5 * 4 == CHUNK_BYTES
