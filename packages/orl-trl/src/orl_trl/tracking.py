"""Weights & Biases, where there is a key or the user asks for it. The configuration goes there without secrets."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from orl_core.errors import ConfigError, boundary

if TYPE_CHECKING:
    from orl_core.config import TrainerConfig
    from orl_rollout.run_folder.contract import Run


def tracks(config: TrainerConfig) -> bool:
    """Tell whether the run goes to Weights & Biases: as `wandb_mode` says, else if there is a key.

    Raises:
        ConfigError: the mode is set and wandb is not installed.
    """
    asked = config.wandb_mode in ("online", "offline")
    installed = find_spec("wandb") is not None
    if asked and not installed:
        raise ConfigError(f"`wandb_mode: {config.wandb_mode}` needs wandb: pip install 'orl-trl[wandb]'")
    return asked or (config.wandb_mode is None and installed and bool(os.environ.get("WANDB_API_KEY")))


@contextmanager
def tracking(run: Run) -> Generator[None]:
    """Open the run at Weights & Biases, which TRL's trainer then finds, and end it with the block."""
    config = run.config.trainer
    if not tracks(config):
        yield
        return
    import wandb

    with boundary(ConfigError, "opening the run at Weights & Biases"):
        tracked = wandb.init(
            project=config.wandb_project or "orl",
            name=config.wandb_run or run.folder.name,
            mode=config.wandb_mode,  # None: as WANDB_MODE says, else online
            dir=str(run.folder),
            config=run.config.public(),
        )
    with tracked:
        yield
