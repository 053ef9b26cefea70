"""L7 in TRL: loss and gradient are the same whether a rollout comes as one row or as several."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from orl_core.config import EnvironmentConfig
from orl_core.datum import Datum
from orl_core.errors import ConfigError
from orl_core.messages import Action, ToolResult
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_rollout.runtime.runtime import RolloutRequest
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.run_plan.settings import MODES, grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_run import quiet_trl, trainer_of
from transformers import AutoModelForCausalLM, PreTrainedModel, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from tests.kit.secrets import NO_SECRETS
from tests.trl.distance import ROUNDING, distance
from tests.trl.fakes import make_run

MEMBERS = 3
ONE, SEVERAL = {"split": False}, {"split": True}


class Recorded:
    """A player of rollouts of several turns. `split` gives each turn a row of its own, with the same contexts.

    The logprobs are those of `model`, each off by up to `noise`.
    """

    def __init__(self, model: PreTrainedModel, *, split: bool = False, noise: float = 0.1) -> None:
        self._split = split
        self._model = model
        self._noise = noise

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Recorded]:
        yield self

    async def play(self, request: RolloutRequest, _: object) -> Outcome:
        number = int(request.rollout_id.rsplit("/", 1)[1])
        turns = tuple(turn_of(number, at) for at in range(1 + number % MEMBERS))
        turns = (*turns[:-1], structs.replace(turns[-1], results=(ToolResult(name="act", reward=number / 4),)))
        job = RolloutSpec(task=request.task, rollout_id=request.rollout_id)
        trajectory = Trajectory(job=job, turns=turns, stop_reason=StopReason.FINISHED)
        outcome = outcome_of(trajectory, EnvironmentConfig(), NO_SECRETS)
        rows = rows_of(outcome) if self._split else outcome.datums
        return structs.replace(outcome, datums=tuple(self._scored(row, number) for row in rows))

    def _scored(self, row: Datum, number: int) -> Datum:
        ids = torch.tensor([[*row.prompt, *row.response]])
        with torch.no_grad():
            scores = torch.log_softmax(self._model(ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])[:, 0]
        off = self._noise * torch.sin(10.0 * torch.arange(1, ids.size(1)) + number)
        return structs.replace(row, logprobs=tuple((scores + off)[len(row.prompt) - 1 :].tolist()))


def turn_of(number: int, at: int) -> Turn:
    ids = tuple(range(20 + number + 10 * at, 24 + 2 * number + 10 * at))
    generation = Generation(token_ids=ids, logprobs=(-1.0,) * len(ids), finish_reason="stop")
    return Turn(observation=(5 + at, 6 + number, 7), generations=(generation,), action=Action())


def rows_of(outcome: Outcome) -> tuple[Datum, ...]:
    """A row for each turn of the one row: its prompt is what came before."""
    (whole,) = outcome.datums
    shown: list[int] = []
    rows: list[Datum] = []
    for turn in outcome.trajectory.turns:
        shown += turn.observation
        size = len(turn.action_ids)
        ones, logprobs = (1,) * size, turn.generations[0].logprobs
        columns: dict[str, Any] = {"response": turn.action_ids, "sampled": ones, "loss_mask": ones}
        columns["generations"] = turn.generations
        columns["rewards"] = tuple((size - 1, one.reward) for one in turn.results if one.reward is not None)
        rows.append(structs.replace(whole, prompt=tuple(shown), logprobs=logprobs, ends=(size - 1,), **columns))
        shown += turn.action_ids
    return tuple(rows)


class Gradients(TrainerCallback):
    """Keeps the gradients of the first update, and the ids that were trained."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        if not self.values:
            self.values = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


Make = Callable[[Any, str, GRPOConfig, Rollouts], GRPOTrainer]
GROUP = {"n_samples": MEMBERS, "rollout_batch_size": 1, "num_rollout": 1}


def trained(
    checkpoint: Path,
    folder: Path,
    player: dict[str, Any],
    members: int = MEMBERS,
    make: Make = trainer_of,
    **flags: Any,
) -> tuple[Any, list[torch.Tensor]]:
    """The trainer after a step over rollouts of a `Recorded` with the options `player`, and its first gradients."""
    run = make_run(folder, checkpoint, **{**GROUP, "n_samples": members}, flags={"max_grad_norm": 0, **flags})
    model, scorer = (AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32") for _ in range(2))
    config = grpo_config(run, parameters=1)
    gradients = Gradients()
    recorded = Recorded(scorer.eval(), **player)
    with quiet_trl(), Rollouts(plan_of(run, config), InProcessEngine(model), recorded.open) as rollouts:
        trainer = make(model, str(checkpoint), config, rollouts)
        trainer.add_callback(gradients)
        trainer.train()
    return trainer, gradients.values


SAMPLING = "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_gradient_is_that_of_one_row(checkpoint: Path, tmp_path: Path, mode: str) -> None:  # shows A36
    flags: dict[str, Any] = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.08}
    one, expected = trained(checkpoint, tmp_path / "one", ONE, **flags)
    several, found = trained(checkpoint, tmp_path / "several", SEVERAL, **flags)
    assert max(gradient.abs().max() for gradient in expected) > 1e-3
    assert distance(found, expected) < ROUNDING
    logs = [next(row for row in trainer.state.log_history if "loss" in row) for trainer in (one, several)]
    for name in ("loss", *SAMPLING):
        assert logs[0][name] == pytest.approx(logs[1][name], abs=2e-5)
    assert logs[0][SAMPLING[0]] > 0.01


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"loss_type": "grpo"}, "loss_type"),
        ({"loss_type": "dr_grpo"}, "loss_type"),
        ({"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate"}, "loss_type"),
        ({"beta": 0.1}, "beta"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
    ],
)
def test_option_that_counts_rows_is_refused_with_strip(tmp_path: Path, flags: dict[str, Any], name: str) -> None:
    run = make_run(tmp_path / "run", None, flags=flags)
    grpo_config(run, parameters=1)
    stripped = structs.replace(run, config=structs.replace(run.config, thinking="strip"))
    with pytest.raises(ConfigError, match=name):
        grpo_config(stripped, parameters=1)
