"""Which command lines let weights be compared at the start, and differences of logprobs be judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_cluster.launch.command.engine_weights import comparable_at_start, samples_fresh
from orl_rollout.run_folder.checkpoint import Checkpoint, write_note

from tests.kit.saved import hugging_face, saved


def words(model: Path, reference: Path | None = None, load: str = "none") -> list[str]:
    return ["--hf-checkpoint", str(model), "--ref-load", str(reference or model), "--load", load]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return hugging_face(tmp_path / "model", dtype="bfloat16")


def converted(folder: Path, model: Path) -> Path:
    saved(folder, None)
    write_note(folder, Checkpoint(format="megatron", trainer="slime", model=str(model)))
    return folder


def test_first_start_in_bf16_is_comparable(model: Path, tmp_path: Path) -> None:
    assert comparable_at_start(words(model))
    assert comparable_at_start(words(model, converted(tmp_path / "converted", model)))
    assert comparable_at_start(words(hugging_face(tmp_path / "older", torch_dtype="bfloat16")))


def test_resumed_training_is_not_comparable(model: Path, tmp_path: Path) -> None:
    own = saved(tmp_path / "own", 19)
    assert not comparable_at_start(words(model, load=str(own)))
    assert not comparable_at_start(words(model, own))
    write_note(own, Checkpoint(format="megatron", model=str(model)))
    assert not comparable_at_start(words(model, own)), "its model is that which training began with, 20 steps before"


def test_conversion_of_unknown_origin_is_not_comparable(model: Path, tmp_path: Path) -> None:
    assert not comparable_at_start(words(model, saved(tmp_path / "converted", None)))
    other = hugging_face(tmp_path / "other")
    assert not comparable_at_start(words(model, converted(tmp_path / "of other", other)))


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"dtype": "float32"},
        {"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}},
        {"dtype": "bfloat16", "vision_config": {}},
    ],
)
def test_other_numbers_and_parts_are_not_comparable(tmp_path: Path, described: dict[str, object]) -> None:
    assert not comparable_at_start(words(hugging_face(tmp_path / "model", **described)))


@pytest.mark.parametrize(
    "option",
    [
        *("--lora-rank=8", "--fp16", "--fp8-format", "--sglang-quantization", "--sglang-dtype=float16"),
        *("--sglang-load-format", "--sglang-speculative-algorithm", "--debug-train-only"),
    ],
)
def test_option_that_makes_weights_differ_is_not_comparable(model: Path, option: str) -> None:
    assert not comparable_at_start([*words(model), option])


def test_unknown_model_is_not_comparable() -> None:
    assert not comparable_at_start(words(Path("Nobody/Never-Loaded")))


@pytest.mark.parametrize(
    ("extra", "fresh"),
    [
        ([], True),
        (["--num-steps-per-rollout", "2"], True),
        (["--use-rollout-logprobs"], True),
        (["--use-rollout-logprobs", "--num-steps-per-rollout", "2"], False),
        (["--partial-rollout"], False),
        (["--fully-async"], False),
        (["--rollout-function-path", "mine.rollout"], False),
        (["--sglang-quantization", "fp8"], False),
        (["--sglang-kv-cache-dtype=fp8_e4m3"], False),
        (["--load-debug-rollout-data", "x"], False),
    ],
)
def test_fresh_rollouts_alone_are_judged(model: Path, extra: list[str], *, fresh: bool) -> None:
    assert samples_fresh([*words(model), *extra], asynchronous=False) == fresh
    assert not samples_fresh([*words(model), *extra], asynchronous=True)


def test_quantised_checkpoint_is_not_judged(tmp_path: Path) -> None:
    model = hugging_face(tmp_path / "model", quantization_config={"quant_method": "fp8"})
    assert not samples_fresh(words(model), asynchronous=False)
