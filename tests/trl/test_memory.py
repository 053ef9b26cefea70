"""The estimate of a run with TRL against torch's own accounting of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orl_trl.run_plan.gpu_memory
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import ConfigError
from orl_core.memory import EngineLoad, Gpu, MemoryReport, shape_of, token_bytes
from orl_core.memory.training import EIGHT_BIT_MOMENTS
from orl_trl import plan
from orl_trl.engine.lora import lora_config
from orl_trl.engine.sampler import BATCH_TOKENS
from orl_trl.run_plan.gpu_memory import OneGpu, check_memory, report, sampling, sizes_of, training
from orl_trl.run_plan.settings import grpo_config
from orl_trl.training.training_run import quiet_trl
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.kit.model_shapes import QWEN3
from tests.trl.fakes import make_run

GIB = 2**30
Caplog = pytest.LogCaptureFixture
TINY: dict[str, Any] = {
    **QWEN3["0.6B"],
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
SIZES = OneGpu(rows=4, rollouts=64, context=2048, turn=512)


def step(model: PreTrainedModel, sizes: OneGpu) -> None:
    """Run forward and backward of one pass, with TRL's own head."""
    ids = torch.zeros(sizes.rows, sizes.context, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16, enabled=sizes.mixed):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    hidden.float().sum().backward()


def measured(config: dict[str, Any], sizes: OneGpu) -> float:
    """Return the bytes at the peak of the second pass of an update after the first. No memory is really taken."""
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
        model.train()
        if sizes.recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            step(model, sizes)
            optimizer.step()
            tracker.reset_mod_stats()
            step(model, sizes)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    return float(peak["Total"])


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "mixed": ("0.6B", 2, {}),
    "kept": ("0.6B", 2, {"recompute": False}),
    "fp32": ("4B", 1, {"mixed": False}),
    "one-row": ("8B", 1, {"rows": 1}),
    "experts": ("30B-A3B", 1, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_peak_is_within_15_percent_of_the_estimate(case: str):
    name, layers, changes = CASES[case]
    config = {**QWEN3[name], "num_hidden_layers": layers, "tie_word_embeddings": True}
    sizes = structs.replace(SIZES, **changes)
    estimate = training(shape_of(config), sizes)
    found = measured(config, sizes)
    assert found == pytest.approx(estimate.total - estimate.logits, rel=0.15)


def test_gradients_and_moments_are_those_of_torch():
    """A real backward pass and a real step of AdamW, in fp32."""
    config = {**TINY, "num_hidden_layers": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    gradients = sum(one.grad.nbytes for one in model.parameters() if one.grad is not None)
    moments = sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    estimate = training(shape_of(config), OneGpu(rows=1, rollouts=1, context=4, turn=1, mixed=False))
    assert (estimate.weights, estimate.gradients, estimate.optimizer) == (
        sum(one.nbytes for one in model.parameters()),
        gradients,
        moments,
    )


def test_adapters_weights_gradients_and_moments_are_those_of_torch():
    config = {**TINY, "num_hidden_layers": 2}
    with quiet_trl():
        base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
        model: Any = get_peft_model(base, cast("LoraConfig", lora_config(4)))
    adapters = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(adapters)
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    moments = sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    sizes = OneGpu(rows=1, rollouts=1, context=4, turn=1, mixed=False, lora_rank=4)
    estimate = training(shape_of(config), sizes)
    assert (estimate.weights, estimate.gradients, estimate.optimizer) == (
        sum(one.nbytes for one in model.parameters()),
        sum(one.grad.nbytes for one in model.parameters() if one.grad is not None),
        moments,
    )
    assert sampling(shape_of(config), sizes).weights == estimate.weights


def test_adapters_need_less(tmp_path: Path):
    """A 4B model with adapters trains within 80 GB, and all of its weights do not."""
    gpu = (Gpu(total=80 * 10**9, free=79 * 10**9),)
    told = " ".join(reported(tmp_path, "4B", gpu).notes)
    assert "--lora-rank 32" in told
    with_adapters = reported(tmp_path, "4B", gpu, lora_rank=32)
    assert not any(note.startswith("training") for note in with_adapters.notes)


def test_cache_of_an_answer_is_that_of_transformers():
    """The in-process engine keeps keys and values in fp32."""
    config = {**TINY, "num_hidden_layers": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    with torch.no_grad():
        cache: Any = model(input_ids=torch.zeros(3, 40, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert sampling(shape_of(config), OneGpu(rows=3, rollouts=3, context=40, turn=8)).kv_cache == kept


@given(rollouts=st.integers(1, 256), context=st.integers(64, 16_384), turn=st.integers(1, 64))
def test_more_rollouts_never_need_less(rollouts: int, context: int, turn: int):
    shape = shape_of(QWEN3["0.6B"])
    sizes = OneGpu(rows=1, rollouts=rollouts, context=context, turn=turn)
    before = sampling(shape, sizes)
    for name in ("rollouts", "context", "turn"):
        more = structs.replace(sizes, **{name: getattr(sizes, name) + 1})
        assert sampling(shape, more).kv_cache >= before.kv_cache
    widest = max(context, BATCH_TOKENS + rollouts * turn)
    assert before.kv_cache <= widest * token_bytes(shape, EngineLoad(rollouts=1, context=1, value_bytes=4))


def reported(tmp_path: Path, name: str, gpus: tuple[Gpu, ...], *extra: str, **trainer: Any) -> MemoryReport:
    """Return the report of 128 rollouts of a published model on `gpus`, trained as on a GPU."""
    made = make_run(tmp_path, "m", rollout_batch_size=8, n_samples=16, **trainer)
    made = structs.replace(made, extra=("--bf16", "true", "--gradient-checkpointing", "true", *extra))
    return report(made, grpo_config(made, parameters=10**9), QWEN3[name], gpus)


def test_weights_that_cannot_fit_are_a_problem(tmp_path: Path):
    found = reported(tmp_path, "8B", (Gpu(total=80 * GIB, free=79 * GIB),))
    (told,) = found.problems
    assert told.startswith("training needs about 13")
    assert found.notes[0].startswith("rollouts needs about")


def test_rows_that_may_outgrow_the_gpu_are_a_note_with_what_fits(tmp_path: Path):
    """Rows may end early, so that the run is not refused."""
    gpu = Gpu(total=40 * GIB, free=39 * GIB)
    found = reported(tmp_path, "0.6B", (gpu,), max_tokens_per_gpu=1 << 18)
    training_told, rollouts_told = found.notes
    assert found.problems == ()
    assert "when all rows have 32768 ids" in training_told
    assert "rollouts a step" in rollouts_told
    option, value = training_told.partition("would fit: ")[2].partition(";")[0].split()
    assert option == "--max-tokens-per-gpu"
    (told,) = reported(tmp_path, "0.6B", (gpu,), max_tokens_per_gpu=int(value)).notes
    assert told == rollouts_told


def test_memory_that_others_hold_is_a_note(tmp_path: Path):
    small = ("--per-device-train-batch-size", "1")
    free = reported(tmp_path, "0.6B", (Gpu(total=200 * GIB, free=199 * GIB),), *small)
    assert (free.problems, free.notes) == ((), ())
    held = reported(tmp_path, "0.6B", (Gpu(total=200 * GIB, free=10 * GIB),), *small)
    assert held.problems == ()
    assert all("10.0 free" in told for told in held.notes)


def test_training_refuses_what_cannot_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Caplog):
    made = make_run(tmp_path, "m")
    settings = grpo_config(made, parameters=10**9)
    monkeypatch.setattr(orl_trl.run_plan.gpu_memory, "gpu_memory", lambda: (Gpu(total=80 * GIB, free=70 * GIB),))
    with pytest.raises(ConfigError, match="training needs"):
        check_memory(made, settings, QWEN3["8B"])
    assert not caplog.messages
    check_memory(made, settings, QWEN3["0.6B"])
    assert any(told.startswith("training needs") for told in caplog.messages)


def test_eight_bit_moments_take_a_quarter(tmp_path: Path):
    made = make_run(tmp_path, "m")
    settings = grpo_config(made, parameters=10**9)
    settings.optim = "adamw_8bit"  # bitsandbytes need not be here
    assert sizes_of(made, settings).moments == EIGHT_BIT_MOMENTS
    assert EIGHT_BIT_MOMENTS < 8 / 3.9


def test_plan_has_the_table(checkpoint: Path, tmp_path: Path):
    table = plan(make_run(tmp_path, checkpoint)).memory
    assert [line.split("  ")[0] for line in table.split("\n")][1:8] == [
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "logits",
        "kv cache",
        "sum",
    ]


def test_unknown_family_is_said(tmp_path: Path):
    made = make_run(tmp_path, "m")
    found = report(made, grpo_config(made, parameters=1), {"model_type": "nobody"}, ())
    assert "nobody" in found.table
    assert (found.problems, found.notes) == ((), ())


def test_sglang_has_its_share_beside_weights_and_optimizer(checkpoint: Path, tmp_path: Path):
    made = make_run(tmp_path / "run", checkpoint)
    settings = grpo_config(made, parameters=10**9)
    gpu = Gpu(total=24 * GIB, free=24 * GIB)
    found = report(made, settings, QWEN3["0.6B"], (gpu,), 0.8)
    assert not found.problems
    assert "--sglang-mem-fraction-static 0." in " ".join(found.notes)
    assert not any("rollouts" in note for note in report(made, settings, QWEN3["0.6B"], (gpu,), 0.5).notes)
    assert report(made, settings, QWEN3["0.6B"], (Gpu(total=4 * GIB, free=4 * GIB),), 0.5).problems
