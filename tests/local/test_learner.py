"""Updates of a Learner: the gradient and the numbers are those of one undivided pass, or nothing is applied."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import ConfigError, EngineError, OrlError
from orl_local import scoring
from orl_local.batch import micro_batches
from orl_local.learner import Learner, Peers
from orl_local.settings import ALGORITHMS
from orl_rollout.run_folder.metrics_log import TRAINING_METRICS
from orl_rollout.training.rows import Row
from torch import Tensor
from transformers import AutoModelForCausalLM, OPTConfig

from tests.kit.quick import every_fifth
from tests.local.distance import ROUNDING, distance
from tests.local.updates import Step, learner_of, rows_for, scores, step_of


@given(lengths=st.lists(st.integers(1, 90), max_size=30), budget=st.integers(1, 300))
def test_each_row_is_in_one_micro_batch_within_budget(lengths: list[int], budget: int) -> None:
    parts = micro_batches(lengths, budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or len(part) * max(lengths[row] for row in part) <= budget for part in parts)


@contextmanager
def memory_for(learner: Learner, ids: int) -> Generator[list[int]]:
    """Let the memory run out in micro-batches of more than `ids` ids. Yields the sizes of all that were begun."""
    sizes: list[int] = []
    (layer,) = (one for name, one in learner.model.named_modules() if name.endswith("layers.1"))

    def run_out(*_: Any) -> None:
        raise torch.OutOfMemoryError("scripted")

    def passed(_: Any, __: Any, output: Tensor) -> None:
        """Fail in the backward pass, if there is one: layers that come later have their gradients by then."""
        sizes.append(output.shape[0] * output.shape[1])
        if sizes[-1] > ids:
            output.register_hook(run_out) if output.requires_grad else run_out()

    hook = layer.register_forward_hook(passed)
    try:
        yield sizes
    finally:
        hook.remove()


@pytest.fixture(scope="module")
def one(model: Any) -> list[Row]:
    return rows_for(model)


@pytest.fixture(scope="module")
def split(model: Any) -> list[Row]:
    return rows_for(model, split=True)


def same(found: Step, expected: Step) -> None:
    for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
        assert distance(ours, theirs) < ROUNDING
    unlike = {"response_tokens", "out_of_memory"}
    assert found.numbers.keys() == expected.numbers.keys()
    for name in expected.numbers.keys() - unlike:
        assert found.numbers[name] == pytest.approx(expected.numbers[name], rel=1e-5, abs=1e-6), name


MODES = ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")
CASES: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": algorithm} for name, algorithm in ALGORITHMS.items()},
    **{mode: {"correction": mode, "correction_cap": 1.05} for mode in MODES},
    "kl": {"kl_coef": 0.1},
    "lora": {"kl_coef": 0.1, "lora_rank": 4},
}


@pytest.mark.parametrize("case", every_fifth(CASES))
def test_rows_and_micro_batches_never_change_a_gradient(
    checkpoint: Path, one: list[Row], split: list[Row], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two updates: the second one has other weights than those that its rows were scored with."""
    changes = {"updates": 2, "lr": 1e-2, **CASES[case]}
    expected = step_of(learner_of(checkpoint, **changes), one)
    assert all(max(float(each.abs().max()) for each in gradient) > 1e-3 for gradient in expected.gradients)
    assert expected.numbers["clip_fraction"] > 0
    assert 0.01 < expected.numbers["logprob_difference"] < 0.1
    same(step_of(learner_of(checkpoint, tokens=60, recompute=True, **changes), split), expected)
    scarce = learner_of(checkpoint, **changes)
    with memory_for(scarce, 60):
        found = step_of(scarce, split)
    same(found, expected)
    assert found.numbers["out_of_memory"] == 2
    monkeypatch.setattr(scoring, "CHUNK", 5 * 600)  # five ids
    same(step_of(learner_of(checkpoint, tokens=1, **changes), one), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradient_is_that_of_the_mean(checkpoint: Path, model: Any, one: list[Row], name: str) -> None:
    """Each id trains on the advantage of its own turn."""
    loss = torch.zeros(())
    for row in one:
        datum, own = row.datum, sum(row.datum.loss_mask)
        whole = {"ids": sum(sum(each.datum.loss_mask) for each in one), "rollouts": 6 * own, "constant": 6 * 8}
        logprobs = scores(model, (*datum.prompt, *datum.response))[len(datum.prompt) - 1 :]
        loss = loss - (logprobs * torch.tensor(row.advantages)).sum() / whole[ALGORITHMS[name].mean]
    weights = sorted(model.parameters(), key=lambda each: each.dim() < 2)  # as the optimizer has them: matrices first
    (found,) = step_of(learner_of(checkpoint, algorithm=ALGORITHMS[name]), one).gradients
    assert distance(found, torch.autograd.grad(loss, weights)) < ROUNDING
    assert len({gain for gain in one[-1].advantages if gain}) == 3


@pytest.mark.parametrize("rank", [None, 4])
def test_kl_is_that_from_the_first_weights(checkpoint: Path, model: Any, one: list[Row], rank: int | None) -> None:
    learner = learner_of(checkpoint, kl_coef=0.1, lora_rank=rank, lr=1e-2)
    assert step_of(learner, one).numbers["kl"] == pytest.approx(0.0, abs=1e-7)
    gaps: list[Tensor] = []
    for row in one:
        ids, start = (*row.datum.prompt, *row.datum.response), len(row.datum.prompt) - 1
        gap = (scores(model, ids) - scores(learner.model, ids))[start:]
        gaps.append(gap[torch.tensor(row.datum.loss_mask) > 0])
    gap = torch.cat(gaps)
    expected = (gap.exp() - gap - 1).mean().item()
    assert step_of(learner, one, 2).numbers["kl"] == pytest.approx(expected, rel=1e-4)
    assert expected > 1e-4


def test_dropout_is_off(checkpoint: Path, one: list[Row]) -> None:
    dropped: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32", attention_dropout=0.5)
    dropped.model.layers[1].mlp = torch.nn.Sequential(dropped.model.layers[1].mlp, torch.nn.Dropout(0.5))
    same(step_of(learner_of(checkpoint, dropped), one), step_of(learner_of(checkpoint), one))


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_of_a_layer_is_off(one: list[Row], recompute: bool) -> None:
    config = OPTConfig(vocab_size=512, hidden_size=16, ffn_dim=16, num_hidden_layers=2, num_attention_heads=2)
    torch.manual_seed(0)
    models = [AutoModelForCausalLM.from_config(config, dtype=torch.float32) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, dropout in zip(models, (0.0, 0.5), strict=True):
        for layer in model.model.decoder.layers:
            layer.dropout = dropout
    same(*(step_of(learner_of(Path(), model, recompute=recompute), one) for model in models))


def test_rates_of_the_run_that_continues_are_obeyed(checkpoint: Path, one: list[Row]) -> None:
    before, after = learner_of(checkpoint), learner_of(checkpoint, lr=5e-2, weight_decay=0.3)
    before.update(one, 1)
    after.restore(before.optimizer.state_dict(), before.schedule.state_dict())
    assert after.update(one, 2)["learning_rate"] == pytest.approx(5e-2)
    assert [group["weight_decay"] for group in after.optimizer.param_groups] == [0.3, 0.0]


@pytest.mark.parametrize("rows", [1, 2])
def test_memory_that_holds_no_row_says_what_to_lower(checkpoint: Path, one: list[Row], rows: int) -> None:
    learner = learner_of(checkpoint, updates=rows)
    before = weights_of(learner)
    with memory_for(learner, 10) as sizes, pytest.raises(ConfigError, match="--max-context-len") as fault:
        learner.update(one, 1)
    assert str(sizes[-1]) in str(fault.value)
    assert len(sizes) < 10
    assert all(map(torch.equal, weights_of(learner), before))


def test_rank_with_a_part_of_the_weights_does_not_try_again(checkpoint: Path, one: list[Row]) -> None:
    """The others wait for it in a layer."""
    peers = Peers()
    learner = learner_of(checkpoint, peers=peers)
    peers.sharded = True
    with memory_for(learner, 60), pytest.raises(ConfigError, match="--load, and --max-tokens-per-gpu"):
        learner.update(one, 1)


def test_optimizer_without_memory_says_what_to_lower(checkpoint: Path, one: list[Row]) -> None:
    learner = learner_of(checkpoint)

    def run_out(*_: Any) -> None:
        raise RuntimeError("HIP out of memory. Tried to allocate")

    learner.optimizer.register_step_pre_hook(run_out)
    with pytest.raises(ConfigError, match="--optimizer"):
        learner.update(one, 1)


def weights_of(learner: Learner) -> list[Tensor]:
    return [each.detach().clone() for each in learner.model.parameters()]


def unchanged(learner: Learner, before: Sequence[Tensor]) -> None:
    """Tell that nothing of an update is left."""
    assert all(map(torch.equal, weights_of(learner), before))
    assert all(each.grad is None for each in learner.model.parameters())
    assert not learner.optimizer.state


def shifted(rows: Sequence[Row], by: float) -> list[Row]:
    """Return rows whose logprobs are those of other weights."""
    return [
        structs.replace(row, datum=structs.replace(row.datum, logprobs=tuple(each - by for each in row.datum.logprobs)))
        for row in rows
    ]


@pytest.mark.parametrize("updates", [1, 2])
def test_update_that_cannot_be_is_not_applied(checkpoint: Path, one: list[Row], updates: int) -> None:
    """A run on a GPU applied a gradient that was not finite, and ended with `SGLang died`."""
    learner = learner_of(checkpoint, max_logprob_difference=0.1, updates=updates)
    before = weights_of(learner)
    assert learner.update([], 1) == {}
    with pytest.raises(EngineError, match="max_logprob_difference"):
        learner.update(shifted(one, 0.7), 1)
    unchanged(learner, before)
    infinite = [structs.replace(row, advantages=tuple(1e38 * gain for gain in row.advantages)) for row in one]
    with pytest.raises(OrlError, match="finite"):
        learner.update(infinite, 1)
    unchanged(learner, before)
    assert learner.update(shifted(one, 0.3), 1)["logprob_difference"] == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_optimizer_schedule_and_norm_are_as_set(checkpoint: Path, one: list[Row], optimizer: str) -> None:
    changes: dict[str, Any] = {"warmup": 2, "lr_decay_style": "linear", "max_grad_norm": 1e-3, "weight_decay": 0.5}
    learner = learner_of(checkpoint, optimizer=optimizer, steps=4, **changes)
    numbers = [learner.update(one, step) for step in (1, 2, 3, 4)]
    assert [each["learning_rate"] for each in numbers] == pytest.approx([0.0, 5e-4, 1e-3, 5e-4])
    assert numbers[0]["grad_norm"] > 1e-3
    assert [group["weight_decay"] for group in learner.optimizer.param_groups] == [0.5, 0.0]
    assert all(each.dim() < 2 for each in learner.optimizer.param_groups[1]["params"])
    common = {"loss", "grad_norm", "learning_rate", "entropy", "clip_fraction", "logprob_difference", "response_tokens"}
    assert common <= numbers[0].keys() & TRAINING_METRICS.keys()
