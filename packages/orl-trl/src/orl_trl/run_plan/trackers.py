"""Weights & Biases and TensorBoard, where the user asks for them. The configuration goes there without secrets."""

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
    found = tracking_of(config)
    if found.mode is None or find_spec("wandb") is not None:
        return found
    if found.requested:
        raise ConfigError(f"Weights & Biases is asked for, and {_install('wandb')}")
    return structs.replace(
        found, mode=None, note=f"Weights & Biases is not used, although you have a key: {_install('wandb')}"
    )


def _install(extra: str) -> str:
    return f"{extra} is not installed. Install it: uv pip install {extra}"


@contextmanager
def tracking(run: Run) -> Generator[None]:
    """Open the run at Weights & Biases, which TRL's trainer then finds, and end it with the block."""
    config = run.config.trainer
    found = tracked_by(config)
    if found.note:
        logger.warning("%s", found.note)
    if found.mode is None:
        yield
        return
    import wandb

    with boundary(ConfigError, "opening the run at Weights & Biases"):
        tracked = wandb.init(
            project=config.wandb_project or "orl",
            name=config.wandb_run or run.folder.name,
            mode=found.mode,
            dir=str(run.folder),
            config=run.config.public(),
        )
    with tracked:
        yield
