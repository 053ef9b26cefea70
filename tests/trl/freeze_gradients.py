"""Write the golden gradients, which `tests/kit/gradients.py` describes: `python -m tests.trl.freeze_gradients`.

orl_trl trains as in a run, but its rollouts are those of the golden rows, which get their advantages from it, and the
order of a step's rows is known. A new case is an entry of cases.json with its name and settings.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import torch
from msgspec import structs
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.rows import Row
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.run_plan.settings import grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.several_rows import more_rows
from orl_trl.training.training_run import quiet_trl, trainer_of
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from trl.trainer import grpo_trainer

from tests.kit.gradients import ADAPTERS, FOLDER, MODEL, PARTS, RANK, WIDTH, Case, Steps, gradients_of, load_cases
from tests.trl.fakes import make_run


class Replayed:
    """A player of rollouts whose rows are known. One without rows fails."""

    def __init__(self, steps: Steps) -> None:
        self._data = [row.datum for update in chain(*steps) for row in update]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Replayed]:
        yield self

    async def play(self, request: RolloutRequest, _: object) -> Outcome:
        data = tuple(one for one in self._data if one.rollout_id == request.rollout_id)
        end, error = (StopReason.FINISHED, "") if data else (StopReason.ERROR, "gone")
        job = RolloutSpec(task=request.task, rollout_id=request.rollout_id)
        trajectory = Trajectory(job=job, turns=(), stop_reason=end, error=error)
        return Outcome(trajectory=trajectory, reward=data[0].reward if data else 0.0, success=False, datums=data)


def freeze(case: Case, folder: Path) -> tuple[Case, Steps, dict[str, Tensor]]:
    """The case with its results, the rows that trained, and the tensors of its file."""
    flags = {
        "loss_type": case.loss,
        "importance_sampling_level": "sequence" if case.sequence else "token",
        "epsilon": case.clip[0],
        "epsilon_high": case.clip[1] + (case.loss == "cispo"),
        "vllm_importance_sampling_correction": case.correction is not None,
        "vllm_importance_sampling_mode": case.correction or "sequence_mask",
        "beta": case.beta,
        "use_bias_correction_kl": case.kl_ratio,
        "warmup_steps": case.warmup,
    }
    rank, estimator = RANK if case.lora else None, "gspo" if case.sequence else "grpo"
    options = {"lr": case.lr, "temperature": case.temperature, "advantage_estimator": estimator, "lora_rank": rank}
    run = make_run(folder, MODEL, **options, flags=flags)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    settings = grpo_config(run, parameters=1)
    assert settings.max_completion_length == WIDTH
    steps: Steps = []
    gradients: list[dict[str, Tensor]] = []
    with (
        pytest.MonkeyPatch.context() as patch,
        quiet_trl(),
        Rollouts(plan_of(run, settings), InProcessEngine(model), Replayed(case.steps).open) as rollouts,
    ):
        trainer = trainer_of(model, str(MODEL), settings, rollouts, lora_rank=rank)
        trainer.max_logprob_difference = math.inf
        trainer.turn_advantages = case.rows.endswith("turns")
        if case.lora:
            set_peft_model_state_dict(trainer.model, load_file(ADAPTERS))

        def in_order(batch: dict[str, Any]) -> dict[str, Any]:
            order, made = ordered(rollouts.outcomes, batch["advantages"])
            steps.append(made)
            return {name: one[order] if isinstance(one, Tensor) and one.dim() else one for name, one in batch.items()}

        def clip(*arguments: Any) -> Any:
            gradients.append(gradients_of(trainer.model))
            return clip_as_ever(*arguments)

        clip_as_ever = trainer.accelerator.clip_grad_norm_
        patch.setattr(grpo_trainer, "shuffle_sequence_dict", in_order)
        patch.setattr(trainer.accelerator, "clip_grad_norm_", clip)
        trainer.train()
    logs = [one for one in trainer.state.log_history if "grad_norm" in one]
    clipped = "cispo_clip_ratio" if case.loss == "cispo" else "clip_ratio/region_mean"
    norms, shares = (tuple(one[name] for one in logs) for name in ("grad_norm", clipped))
    weights = get_peft_model_state_dict(trainer.model) if case.lora else dict(trainer.model.named_parameters())
    parts = zip(PARTS, (*gradients[:2], weights), strict=True)
    tensors = {f"{of}/{name}": one.detach().clone() for of, named in parts for name, one in named.items()}
    return structs.replace(case, norms=norms, clipped=shares), steps, tensors


def ordered(outcomes: Sequence[Outcome], gained: Tensor) -> tuple[list[int], list[list[Row]]]:
    """The places of TRL's rows in two updates, of the even and of the odd rollouts, and the rows that train.

    TRL has the first row of each rollout, then the others. `gained` are its advantages.
    """
    rows = [(at, one.datums[0] if one.datums else None) for at, one in enumerate(outcomes)] + more_rows(outcomes)
    order = sorted(range(len(rows)), key=lambda at: (rows[at][0] % 2, rows[at][0]))
    half = len(rows) // 2
    assert [owner % 2 for owner, _ in (rows[at] for at in order)] == [0] * half + [1] * half

    def trained(places: Sequence[int]) -> Iterator[Row]:
        for at in places:
            if (datum := rows[at][1]) and any(datum.loss_mask):
                own = gained[at] if gained.dim() == 1 else gained[at, : len(datum.response)]
                yield Row(datum=datum, advantages=tuple((own * torch.tensor(datum.loss_mask)).tolist()))

    return order, [list(trained(order[:half])), list(trained(order[half:]))]


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = load_cases()
    for name in cases:
        with TemporaryDirectory() as temporary:
            cases[name], steps, tensors = freeze(cases[name], Path(temporary))
        save_file(tensors, FOLDER / f"{name}.safetensors")
        files = {f"rows_{cases[name].rows}": steps, "cases": list(cases.values())}
        for file, value in files.items():
            text = msgspec.json.format(msgspec.json.encode(value), indent=1)
            (FOLDER / f"{file}.json").write_bytes(text + b"\n")
