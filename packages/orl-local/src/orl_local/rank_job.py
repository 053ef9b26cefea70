"""What a rank begins with. Importing it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from orl_core.config import RunConfig
from orl_rollout.run_folder.checkpoint import lasting_name

from orl_local.checkpoints import Start
from orl_local.settings import Settings

STOP = "stop"  # what is asked of a child while it works


class Job(Struct, frozen=True, kw_only=True):
    """What a rank begins with. `name` is the checkpoint of weights and tokenizer, `start` the one that it continues.

    `model` is the one that the training began with, `order` what two runs share, `kept` the number of checkpoints that
    stay.
    """

    config: RunConfig
    settings: Settings
    name: str
    model: str
    order: Mapping[str, Any]
    kept: int
    start: Start | None = None

    @property
    def base(self) -> str:
        """The checkpoint of the weights: with adapters those that they were made for."""
        return self.start.model if self.start and self.settings.lora_rank else self.name


def job_of(config: RunConfig, settings: Settings, order: Mapping[str, Any], start: Start | None, kept: int) -> Job:
    """Return the job of a run."""
    name = config.trainer.load or config.trainer.model or ""
    model = start.model if start else lasting_name(name)
    return Job(config=config, settings=settings, name=name, model=model, order=order, kept=kept, start=start)
