"""Supervised training with TRL's SFTTrainer on rows that orl rendered: their ids and masks go through unchanged.

It knows neither episodes nor renderers. Rows train in the order that the caller chose.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, cast

import torch
from accelerate.utils.memory import clear_device_cache
from datasets import Dataset
from datasets.utils import disable_progress_bars
from orl_core.datum import Datum
from orl_core.errors import ConfigError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import WarmStart
from orl_rollout.tokenizer.pretrained import load_pretrained
from transformers import AutoConfig, PrinterCallback, TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from orl_trl.engine.local_model import load_model
from orl_trl.run_plan.settings import CHECKPOINTING

IGNORED = -100
WARMUP = 20  # steps: Adam's first steps are as large as the learning rate, whatever the gradient


class _Steps(TrainerCallback):
    """Tells of each step, and keeps the latest loss."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report = report
        self.loss = float("nan")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the step."""
        interrupt.check()
        self.report(state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Keep the loss."""
        self.loss = float((logs or {}).get("loss", self.loss))


def train(start: WarmStart, report: Callable[[int, int], None]) -> dict[str, float]:
    """See `orl_rollout.run_folder.contract.WarmStarter.train`."""
    disable_progress_bars()
    tokenizer = load_pretrained(start.model)
    tokenizer.chat_template = start.chat_template or tokenizer.chat_template
    steps = _Steps(report)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=load_model(start.model),
            args=_settings(start, scratch),
            train_dataset=Dataset.from_list([*map(row_of, start.rows)]).select(start.order),
            eval_dataset=Dataset.from_list([*map(row_of, start.held_out)]) if start.held_out else None,
            processing_class=tokenizer,
            callbacks=[steps],
        )
        trainer.remove_callback(PrinterCallback)
        with boundary(ConfigError, f"training on {start.batch_size} rows at a step"):
            trainer.train()
            config = AutoConfig.from_pretrained(start.model, trust_remote_code=False).get_text_config()
            cast("Any", trainer.model).to(config.dtype or torch.float32)  # what is saved is what is measured
            measured = trainer.evaluate() if start.held_out else {}
    trainer.save_model(str(start.output))
    losses = {"train_loss": steps.loss, "held_out_loss": measured.get("eval_loss")}
    facts = {name: value for name, value in losses.items() if value is not None}
    facts["parameters"] = cast("Any", trainer.model).num_parameters()
    del trainer
    clear_device_cache(garbage_collection=True)
    return facts


def row_of(datum: Datum) -> dict[str, list[int]]:
    """Return the ids of a datum, and as labels those that its mask trains."""
    trained = [token if mask else IGNORED for token, mask in zip(datum.response, datum.loss_mask, strict=True)]
    return {"input_ids": [*datum.prompt, *datum.response], "labels": [IGNORED] * len(datum.prompt) + trained}


def _settings(start: WarmStart, scratch: str) -> SFTConfig:
    """Return the settings of a training that leaves nothing behind but its weights."""
    gpu = torch.cuda.is_available()
    settings: dict[str, Any] = {CHECKPOINTING: False}
    return SFTConfig(
        output_dir=scratch,
        max_steps=start.steps,
        per_device_train_batch_size=start.batch_size,
        per_device_eval_batch_size=start.batch_size,
        prediction_loss_only=True,
        learning_rate=start.lr,
        lr_scheduler_type=start.decay,
        warmup_steps=min(WARMUP, start.steps // 4),
        adam_beta2=0.99,
        weight_decay=0.0,
        seed=start.seed,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        use_cpu=not gpu,
        bf16=gpu,
        fp16=False,
        dataloader_pin_memory=gpu,
        save_strategy="no",
        eval_strategy="no",
        logging_steps=max(1, start.steps // 10),
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
