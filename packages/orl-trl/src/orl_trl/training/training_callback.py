"""The course of a run: measure, train step by step, measure again, write the results, however it ends.

It is TRL's callback: a step of orl is one batch of rollouts and TRL's updates of it, and one row of metrics.jsonl.
"""

from __future__ import annotations

import time
from typing import Any, cast

import torch
from orl_core.errors import OrlError
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import CHECKPOINT, Run
from orl_rollout.run_folder.gpu_usage import gpu_usage
from orl_rollout.training.course import Record
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from orl_trl.engine.served_engine import SYNC_SECONDS
from orl_trl.run_plan.gpu_memory import peak_memory
from orl_trl.training.micro_batches import naming_options
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.trl_metrics import PACKAGES, trl_metrics
from orl_trl.training.whole_checkpoints import WholeCheckpoints


class Training(TrainerCallback):
    """One run; `updates` is the number of the optimizer's updates in a step."""

    def __init__(self, run: Run, rollouts: Rollouts, *, updates: int) -> None:
        self._run = run
        self._rollouts = rollouts
        self._updates = updates
        self._begun = 0
        self._logs: list[dict[str, Any]] = []
        self._measured = -1
        self._record = Record(run, PACKAGES, self._facts)

    def train(self, trainer: WholeCheckpoints) -> None:
        """Train to the end. Summary and checkpoint are written on every path, also on a signal and from the breaker."""
        self._trainer = trainer
        self._parameters = cast("PreTrainedModel", trainer.model).num_parameters()
        trainer.add_callback(self)
        start = trainer.start
        self._record.steps = self._begun = start.step if start else 0
        with gpu_usage() as self._gpu_usage:
            try:
                with self._record.running(), interrupt.patient(), naming_options():
                    self._measure(self._begun)
                    trainer.train(resume_from_checkpoint=str(start.folder) if start else None)
                    self._measure(self._rollouts.step)
            finally:
                with interrupt.held(), self._record.concluded():
                    if self._record.steps > self._begun:
                        trainer.save_whole(self._run.folder / CHECKPOINT, self._record.steps)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save as often as this run says: the state may be that of the run before."""
        state.compute_steps(args, state.max_steps)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop before an update, or between two of its passes, if a signal came. The weights are those of an update."""
        interrupt.check()

    on_substep_end = on_step_begin

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Refuse a gradient that is not finite: it would make every weight NaN, and SGLang dies of those.

        Raises:
            OrlError: it is not; the weights are still those of the update before.
        """
        if args.fp16:  # accelerate leaves such an update out, and lowers the scale
            return
        gradients = [one.grad for one in more["model"].parameters() if one.grad is not None]
        if not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            raise OrlError(
                f"the gradient of update {state.global_step + 1} is not finite, and is not applied. Begin a new run "
                f"from the last checkpoint, with a lower --lr: --model {self._run.folder}"
            )

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Collect an update's numbers; the last one of a step ends it. Evaluations and totals are no update's."""
        logs: dict[str, Any] = more["logs"]
        if "loss" not in logs:
            return
        self._logs.append(logs)
        if state.global_step % self._updates:
            return
        self._end_step(final=state.global_step >= state.max_steps)
        self._logs = []

    def _end_step(self, *, final: bool) -> None:
        rollouts, step = self._rollouts, self._rollouts.step
        seconds = time.monotonic() - rollouts.started
        engine = dict(rollouts.engine.metrics)
        playing, trained = rollouts.seconds - engine.get(SYNC_SECONDS, 0.0), seconds - rollouts.seconds
        spent = {"rollout_seconds": playing, "train_seconds": trained, "step_seconds": seconds, **engine}
        memory = {"train_memory_gib": peak} if (peak := peak_memory()) else {}
        more = {**trl_metrics(self._logs), **spent, **memory, "out_of_memory": float(self._trainer.out_of_memory)}
        self._trainer.out_of_memory = 0
        self._trainer.note_random_state()  # before the step counts: a signal may end the measurement below
        self._record.add("train", step, rollouts.outcomes, seconds=seconds, more={**more, **self._gpu_usage()})
        self._record.check_drift()
        interval = self._run.config.eval.interval
        if interval and step % interval == 0 and not final:
            self._measure(step)
        self._trainer.note_random_state()

    def _measure(self, step: int) -> None:
        """Collect rollouts of the held-out tasks, if there are any, once for the same weights."""
        if not self._rollouts.plan.held_out or step == self._measured:
            return
        started = time.monotonic()
        outcomes = self._rollouts.evaluate()
        self._measured = step
        seconds = time.monotonic() - started
        more = {**self._rollouts.engine.metrics, **self._gpu_usage()}
        metrics = self._record.add("eval", step, outcomes, seconds=seconds, more=more)
        self._trainer.log({f"eval_{name}": value for name, value in metrics.items()})

    def _facts(self) -> dict[str, Any]:
        start = self._trainer.start
        resumed = {"resumed_from": str(start.folder), "resumed_step": start.step} if start else {}
        return {"model_params": self._parameters, **resumed}
