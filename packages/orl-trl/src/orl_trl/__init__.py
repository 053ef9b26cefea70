"""The embedded default trainer: TRL's GRPOTrainer on one machine, fed by orl's own loop through an in-process engine.

Importing it costs nothing: torch, transformers and trl are imported when `train` is called.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_rollout.run import Run


def train(run: Run) -> None:
    """Train `run.config.trainer.model` with GRPO on the tasks of `run.task_data`; the files are listed in `Run`.

    Ctrl-C closes the sessions, writes what there is (`interrupted: true` in summary.json) and passes on.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
        RunAborted: too many rollouts ended in ERROR.
    """
    # Both are read once, when the libraries load. Torch's threads share their cores with the environment's server:
    # spinning while they wait would cost each of them a multiple of the work. And nobody is told of a run.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from orl_trl.trainer import train as train_now

    train_now(run)
