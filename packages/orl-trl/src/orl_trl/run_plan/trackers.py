"""Weights & Biases and TensorBoard, if the user asks for them. The configuration goes there without secrets."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec import structs
from orl_core.errors import ConfigError, boundary
from orl_rollout.logs import logger_of
from orl_rollout.run_folder.tracking import Tracking, tracking_of

if TYPE_CHECKING:
    from orl_core.config import TrainerConfig
    from orl_rollout.run_folder.contract import Run

logger = logger_of("orl")


def tracked_by(config: TrainerConfig) -> Tracking:
    """Return how the run is reported to Weights & Biases. Only a user who asks for it needs wandb.

    Raises:
        ConfigError: wandb or TensorBoard is asked for and not installed, or there is no key for `online`.
    """
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError(f"`tensorboard` is set, and {_install('tensorboard')}")
    tracked = tracking_of(config)
    if tracked.mode is None or find_spec("wandb") is not None:
        return tracked
    if tracked.requested:
        raise ConfigError(f"Weights & Biases is asked for, and {_install('wandb')}")
    return structs.replace(
        tracked, mode=None, note=f"Weights & Biases is not used, although you have a key: {_install('wandb')}"
    )


def _install(extra: str) -> str:
    return f"{extra} is not installed. Install it: uv pip install {extra}"


@contextmanager
def tracking(run: Run) -> Generator[None]:
    """Open the run at Weights & Biases, which TRL's trainer then finds, and end it with the block."""
    config = run.config.trainer
    tracked = tracked_by(config)
    if tracked.note:
        logger.warning("%s", tracked.note)
    if tracked.mode is None:
        yield
        return
    import wandb

    with boundary(ConfigError, "opening the run at Weights & Biases"):
        opened = wandb.init(
            project=config.wandb_project or "orl",
            name=config.wandb_run or run.folder.name,
            mode=tracked.mode,
            dir=str(run.folder),
            config=run.config.public(),
        )
    with opened:
        yield
