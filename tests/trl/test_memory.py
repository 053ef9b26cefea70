"""The estimate of a run with TRL against torch's own accounting of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orl_trl.run_plan.gpu_memory
import pytest
import torch
import trl.kernels.chunked_logprob
import trl.trainer.utils
from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.gpus import Gpu
from orl_rollout.memory.estimate import GIB, MemoryReport
from orl_rollout.memory.model import shape_of
from orl_testing.tinker.model import CACHE
from orl_trl.engine.lora import lora_config
from orl_trl.engine.sampler import BATCH_TOKENS
from orl_trl.run_plan.gpu_memory import TILE_TOKENS, TILE_WIDTH, OneGpu, check_memory, report, sampling, training
from orl_trl.run_plan.settings import grpo_config
from orl_trl.training.training_run import quiet_trl
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from tests.kit.model_shapes import QWEN3
from tests.trl.fakes import make_run

Caplog = pytest.LogCaptureFixture
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
    """A real backward pass and a real step of AdamW, in fp32."""
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), dtype=torch.float32)
    if rank:
        with quiet_trl():
            model = get_peft_model(model, cast("LoraConfig", lora_config(rank)))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    moments = sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    sizes = OneGpu(rows=1, rollouts=1, context=4, turn=1, mixed=False, lora_rank=rank)
    estimate = training(shape_of(TINY), sizes)
    assert (estimate.weights, estimate.gradients, estimate.optimizer) == (
        sum(one.nbytes for one in model.parameters()),
        sum(one.grad.nbytes for one in trained),
        moments,
    )
    assert sampling(shape_of(TINY), sizes).weights == estimate.weights


def test_cache_of_an_answer_is_that_of_transformers():
    """The in-process engine keeps keys and values in fp32."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), dtype=torch.float32)
    with torch.no_grad():
        cache: Any = model(input_ids=torch.zeros(3, 40, dtype=torch.long), use_cache=True)[CACHE]
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert sampling(shape_of(TINY), OneGpu(rows=3, rollouts=3, context=40, turn=8)).kv_cache == kept


def test_batch_is_one_context_or_the_rows_that_a_batch_holds():
    shape = shape_of(TINY)
    sizes = OneGpu(rows=1, rollouts=8, context=BATCH_TOKENS * 2, turn=256)
    assert sampling(shape, sizes) == sampling(shape, structs.replace(sizes, rollouts=1))
    wide = structs.replace(sizes, context=BATCH_TOKENS // 4)
    assert sampling(shape, wide).kv_cache == (BATCH_TOKENS + 8 * 256) * shape.token_bytes(value_bytes=4)


def reported(tmp_path: Path, name: str, gpus: tuple[Gpu, ...], *extra: str, **trainer: Any) -> MemoryReport:
    """Return the report of 128 rollouts of a published model on `gpus`, trained as on a GPU."""
    made = make_run(tmp_path, "m", rollout_batch_size=8, n_samples=16, **trainer)
    made = structs.replace(made, extra=("--bf16", "true", "--gradient-checkpointing", "true", *extra))
    return report(made, grpo_config(made, parameters=10**9), QWEN3[name], gpus)


def test_adapters_or_smaller_moments_need_less(tmp_path: Path):
    """A 4B model with adapters trains within 80 GB, and all of its weights do not."""
    gpu = (Gpu(total=80 * 10**9, free=79 * 10**9),)
    assert "--lora-rank 32" in " ".join(reported(tmp_path, "4B", gpu).notes)
    for smaller in ({"lora_rank": 32}, {"optimizer": "sgd"}):
        notes = reported(tmp_path, "4B", gpu, **smaller).notes
        assert not any(note.startswith("training") for note in notes)


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


def test_training_refuses_what_cannot_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Caplog):
    made = make_run(tmp_path, "m")
    settings = grpo_config(made, parameters=10**9)
    monkeypatch.setattr(orl_trl.run_plan.gpu_memory, "gpu_memory", lambda: (Gpu(total=80 * GIB, free=70 * GIB),))
    with pytest.raises(ConfigError, match="training needs"):
        check_memory(made, settings, QWEN3["8B"])
    assert not caplog.messages
    check_memory(made, settings, QWEN3["0.6B"])
    assert any(told.startswith("training needs") for told in caplog.messages)


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


def test_tiles_of_logits_are_those_of_trl():
    assert trl.kernels.chunked_logprob.TOKEN_CHUNK_SIZE == TILE_TOKENS
    assert trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE == TILE_WIDTH
