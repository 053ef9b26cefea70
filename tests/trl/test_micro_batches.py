"""Micro-batches sized by ids: the gradient of an undivided pass, also after the memory ran out."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import ConfigError
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.engine.out_of_memory import is_out_of_memory
from orl_trl.run_plan.settings import grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.micro_batches import micro_batches
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_run import quiet_trl, train, trainer_of
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Trainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from tests.trl.distance import ROUNDING, distance
from tests.trl.fakes import Player, by_row, make_run, rows, summary

WHOLE = 10**6
PROMPTS, RESPONSES = (3, 9, 4, 3, 5, 2), (12, 2, 30, 7, 7, 20)
TRAINED = (12, 0, 21, 3, 7, 20)  # the second row trains nothing

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=30)


@given(lengths=lengths, budget=st.integers(1, 300), most=st.integers(1, 12))
def test_every_row_is_in_one_micro_batch_within_the_budget(lengths: list[tuple[int, int]], budget: int, most: int):
    prompts, responses = ([pair[at] for pair in lengths] for at in (0, 1))
    parts = micro_batches(prompts, responses, budget, most)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        padded = len(part) * (max(prompts[row] for row in part) + max(responses[row] for row in part))
        assert len(part) == 1 or (padded <= budget and len(part) <= most)


def batch_of(logprobs: Tensor | float = 0.0) -> dict[str, Any]:
    """TRL's batch of rows of different lengths, with everything that a loss may read; `logprobs` are the model's."""
    noise = torch.Generator().manual_seed(1)
    sides = {"prompt": (PROMPTS, True), "completion": (RESPONSES, False)}
    columns: dict[str, Any] = {}
    for name, (sizes, left) in sides.items():
        ones = [[0] * (max(sizes) - size) + [1] * size for size in sizes]
        mask = torch.tensor(ones if left else [row[::-1] for row in ones])
        columns[f"{name}_mask"] = mask
        columns[f"{name}_ids"] = mask * torch.randint(5, 500, mask.shape, generator=noise)
    mask = columns["completion_mask"]
    columns["tool_mask"] = (mask.cumsum(1) <= torch.tensor(TRAINED)[:, None]).long()
    columns["num_items_in_batch"] = (mask * columns["tool_mask"]).sum()
    columns["advantages"] = torch.randn(len(PROMPTS), generator=noise)
    off = 0.2 * torch.randn(mask.shape, generator=noise) * mask * columns["tool_mask"]
    columns["importance_sampling_ratio"] = off.exp()
    columns["old_per_token_logps"] = logprobs + 0.1 * torch.randn(mask.shape, generator=noise)
    columns["ref_per_token_logps"] = logprobs + 0.1 * torch.randn(mask.shape, generator=noise)
    return columns


@pytest.fixture(scope="module")
def shared(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = make_run(tmp_path_factory.mktemp("run"), checkpoint)
    settings = grpo_config(run, parameters=1)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float64")
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.3 if one.dim() == 2 else 1.0)  # rotations are fp32, and less padding shifts them
    player = Player(run.config, by_row)
    with quiet_trl():
        rollouts = Rollouts(plan_of(run, settings), InProcessEngine(model), lambda: player.open(run, ""))
        return trainer_of(model, str(checkpoint), settings, rollouts)


@pytest.fixture
def trainer(shared: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer at the begin of an update of one pass."""
    for name, value in {
        "micro_batch_tokens": WHOLE,
        "out_of_memory": 0,
        "current_gradient_accumulation_steps": 1,
    }.items():
        monkeypatch.setattr(shared, name, value, raising=False)
    monkeypatch.setattr(shared.args, "steps_per_generation", 1)
    begin(shared)
    return shared


def begin(trainer: Any) -> None:
    """Go on to a new update."""
    trainer.model.zero_grad()
    trainer.state.global_step += 1
    trainer._metrics["train"].clear()


def scored(trainer: Any, batch: dict[str, Any]) -> Tensor:
    """TRL's own logprobs of the responses."""
    ids, mask = (torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    with torch.no_grad():
        return GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, ids, mask, max(RESPONSES))[0]


@pytest.fixture(scope="module")
def recorded(shared: Any) -> dict[str, Any]:
    return batch_of(scored(shared, batch_of()))


@pytest.fixture
def batch(recorded: dict[str, Any]) -> dict[str, Any]:
    return dict(recorded)


def gradients(trainer: Any) -> list[Tensor]:
    found = [one.grad.clone() for one in trainer.model.parameters() if one.grad is not None]
    assert max(one.abs().max() for one in found) > 1e-3
    return found


def metrics(trainer: Any) -> dict[str, list[float]]:
    return {
        name: list(values)
        for name, values in trainer._metrics["train"].items()
        if name not in ("step_time", "micro_batches")
    }


def of_trl(
    trainer: Any, batch: dict[str, Any], passes: int = 1
) -> tuple[list[Tensor], dict[str, list[float]], list[float]]:
    """TRL's own gradients, metrics and losses, of undivided passes with all their padding."""
    begin(trainer)
    losses = [float(Trainer.training_step(trainer, trainer.model, batch)) for _ in range(passes)]
    found = gradients(trainer), metrics(trainer), losses
    begin(trainer)
    return found


LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")},
    "sequences": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "reference": {"loss_type": "dapo", "beta": 0.1},
    "entropy": {"loss_type": "dapo", "entropy_coef": 0.1, "_entropy_bonus_enabled": True},
    "adaptive": {
        "entropy_coef": 0.1,
        "_entropy_bonus_enabled": True,
        "use_adaptive_entropy": True,
        "_last_world_entropy": 0.0,
    },
}


@pytest.mark.parametrize("budget", [1, 60, 100])
@pytest.mark.parametrize("case", LOSSES)
def test_gradient_is_that_of_the_undivided_pass(
    trainer: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch, case: str, budget: int
):
    expected, told, (loss,) = [], {}, [0.0]
    for reference in (True, False):
        for name, value in LOSSES[case].items():
            monkeypatch.setattr(trainer, name, value)
        if reference:
            expected, told, (loss,) = of_trl(trainer, batch)
    trainer.micro_batch_tokens = budget
    found = float(trainer.training_step(trainer.model, batch))
    off = distance(gradients(trainer), expected)
    assert off < ROUNDING
    assert found == pytest.approx(loss, rel=2e-5)
    assert trainer._metrics["train"]["micro_batches"][0] > 1
    ours = metrics(trainer)
    for name in told.keys() - {"vespo/phi_seq_mean"}:  # a mean over rows, also of those that train nothing
        assert ours[name] == pytest.approx(told[name], abs=1e-4), name


def test_rows_that_train_nothing_are_a_step_of_zeros(trainer: Any, batch: dict[str, Any]):
    batch["tool_mask"] = torch.zeros_like(batch["tool_mask"])
    batch["num_items_in_batch"] = torch.tensor(0)
    assert float(trainer.training_step(trainer.model, batch)) == 0.0
    assert all(not one.grad.any() for one in trainer.model.parameters() if one.grad is not None)


@contextmanager
def memory_for(trainer: Any, ids: int, *, at: str = "backward") -> Generator[list[int]]:
    """Let the memory run out in micro-batches of more than `ids` ids; yields the sizes of all that were begun."""
    sizes: list[int] = []
    base = trainer.model.base_model

    def run_out(*_: Any) -> None:
        raise torch.OutOfMemoryError("scripted")

    def begun(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        sizes.append(kwargs["input_ids"].numel())
        if at == "forward" and sizes[-1] > ids:
            run_out()

    def ended(_: Any, __: Any, output: Any) -> None:
        """Fail between the layers: those that come later have their gradients by then."""
        if at == "backward" and sizes[-1] > ids:
            (output[0] if isinstance(output, tuple) else output).register_hook(run_out)

    hooks = [base.register_forward_pre_hook(begun, with_kwargs=True), base.layers[1].register_forward_hook(ended)]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("at", [pytest.param("forward", marks=pytest.mark.slow), "backward"])
def test_update_is_repeated_after_the_memory_ran_out(trainer: Any, batch: dict[str, Any], at: str):
    expected, told, losses = of_trl(trainer, batch, passes=2)
    assert trainer.training_step(trainer.model, batch) == pytest.approx(losses[0], abs=1e-5)
    with memory_for(trainer, 50, at=at) as sizes:
        assert trainer.training_step(trainer.model, batch) == pytest.approx(losses[1], abs=1e-5)
    off = distance(gradients(trainer), expected)
    assert off < ROUNDING
    ours = metrics(trainer)
    for name in told:
        assert ours[name] == pytest.approx(told[name], abs=1e-4), name
    assert trainer.out_of_memory == 2
    assert trainer.micro_batch_tokens < sizes[0] // 2
    assert sum(size > 50 for size in sizes) == 2
    assert len(sizes[2:]) % 2 == 0  # both passes were trained again, in equal parts


@pytest.mark.slow
def test_memory_that_holds_no_row_says_what_to_lower(trainer: Any, batch: dict[str, Any]):
    with memory_for(trainer, 10) as sizes, pytest.raises(ConfigError, match="--max-context-len") as refusal:
        trainer.training_step(trainer.model, batch)
    assert str(sizes[-1]) in str(refusal.value)
    assert len(sizes) < 8


def test_other_faults_are_raised(trainer: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(trainer, "compute_loss", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        trainer.training_step(trainer.model, batch)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert is_out_of_memory(RuntimeError("HIP out of memory. Tried to allocate"))


@pytest.mark.parametrize("most", [WHOLE, 50])
def test_logprobs_of_a_batch_are_those_of_trl(trainer: Any, batch: dict[str, Any], most: int):
    ids, mask = (torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    expected = scored(trainer, batch)
    trainer.micro_batch_tokens = 80
    with torch.no_grad(), memory_for(trainer, most, at="forward") as sizes:
        found, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, max(RESPONSES), batch_size=4)
    torch.testing.assert_close(found, expected * batch["completion_mask"], atol=1e-5, rtol=1e-5)
    assert trainer.out_of_memory == (most == 50)
    assert max(sizes) <= 80


def test_every_query_sees_a_key(trainer: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Attention on a GPU returned NaN as the gradient of queries at padding on the left (PyTorch issue 178251)."""
    score, masks = GRPOTrainer._get_per_token_logps_and_entropies, list[Tensor]()

    def noting(self: Any, model: Any, ids: Tensor, mask: Tensor, keep: int, **more: Any) -> Any:
        masks.append(mask)
        return score(self, model, ids, mask, keep, **more)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", noting)
    trainer.training_step(trainer.model, batch, None)
    assert masks
    assert all(bool(mask[:, 0].all()) for mask in masks)


def test_scores_of_a_mixture_are_those_of_trl(trainer: Any, batch: dict[str, Any]):
    shape = Qwen3MoeConfig(
        **dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim"), 16),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers"), 2),
        vocab_size=512,
        num_experts=4,
        num_experts_per_tok=2,
    )
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids, mask = (torch.cat([batch[f"prompt_{one}"], batch[f"completion_{one}"]], dim=1) for one in ("ids", "mask"))
    kept = batch["completion_mask"]
    asked = model, ids, mask, kept.size(1)
    more = {"compute_entropy": True, "compute_aux_loss": True}
    *ours, loss = trainer._get_per_token_logps_and_entropies(*asked, **more)
    *theirs, their_loss = GRPOTrainer._get_per_token_logps_and_entropies(trainer, *asked, **more)
    torch.testing.assert_close(loss, their_loss)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one * kept, other * kept, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_run_counts_what_it_repeated(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1, max_tokens_per_gpu=24)
    step = Trainer.training_step
    sizes: list[int] = []

    def scripted(self: Trainer, model: Any, inputs: dict[str, Tensor], items: Any = None) -> Tensor:
        sizes.append(inputs["prompt_ids"].numel() + inputs["completion_ids"].numel())
        if len(sizes) == 2:
            raise torch.OutOfMemoryError("scripted")
        return step(self, model, inputs, items)

    monkeypatch.setattr(Trainer, "training_step", scripted)
    train(run, Player(run.config, by_row).open)
    (row,) = (row for row in rows(run) if row["kind"] == "train")
    assert row["out_of_memory"] == 1
    assert row["micro_batches"] > 1
    assert max(sizes[:2]) <= 24
    assert max(sizes[2:]) <= 12


def test_optimizer_without_memory_says_what_to_lower(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def scripted(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("scripted")

    monkeypatch.setattr(torch.optim.AdamW, "step", scripted)
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    with pytest.raises(ConfigError, match="--optimizer"):
        train(run, Player(run.config, by_row).open)
    assert "--lora-rank" in summary(run)["error"]
