"""The shape of a model: its options, which the trainer's checkout has in scripts, and whether it has experts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from orl_core import ConfigError, TrainerConfig, boundary
from orl_core.text import did_you_mean
from orl_rollout.edge import children
from orl_rollout.memory import config_of, experts_of

from orl_cluster.launch.command.command import LaunchRequest
from orl_cluster.launch.command.trainer_defaults import MODEL, absolute
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.options import cluster_of, number, value_of

EXPERTS = "--num-experts"
SHAPE_SECONDS = 120.0  # it may import the trainer's package


def model_shape(
    installation: Installation,
    trainer: TrainerConfig,
    suffix: str,
    command_of: Callable[[Path], list[str]],
    separator: str | None = None,
) -> list[str]:
    """Return the options of the model's shape: the words that `command_of(script)` prints between `separator`.

    The script is the one that `--model-args` names, a path or a name in scripts/models of the trainer; else the one
    that is named like the model, whatever the case. Without an installed trainer there are none to show.

    Raises:
        ConfigError: none is named, there is no such file, or it gives no options.
    """
    if installation.missing:
        return []
    script = _model_script(installation, trainer, suffix).absolute()
    environment = {**os.environ, **installation.environment}
    with boundary(ConfigError, f"--model-args {script}"):
        printed = children.run(command_of(script), environment=environment, timeout=SHAPE_SECONDS)
    words = [word for word in printed.stdout.split(separator) if word]
    if printed.returncode or not words:
        why = (printed.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"--model-args {script}: it gives no options of a model: {why}")
    return words


def is_mixture(request: LaunchRequest, shape: Sequence[str]) -> bool:
    """Tell whether the model has experts: by the options of its `shape`, else by its config.json, if that is here."""
    words = [*shape, *request.words]
    if shape or value_of(words, EXPERTS):
        return number(words, EXPERTS) > 1
    with suppress(ConfigError):
        return experts_of(config_of(absolute(request.trainer.model or MODEL)))[0] > 1
    return False


def _model_script(installation: Installation, trainer: TrainerConfig, suffix: str) -> Path:
    folder = Path(installation.findings.root, "scripts", "models")
    known = sorted(script.stem for script in folder.glob(f"*{suffix}"))
    model = Path(trainer.model or MODEL).name.lower()
    named = cluster_of(trainer).model_args or next((script for script in known if script.lower() == model), "")
    if not named:
        raise ConfigError(
            f"--model-args: name the script with the shape of {trainer.model}: a path, or one of {', '.join(known)}"
        )
    name = Path(named).name.removesuffix(suffix)
    script = Path(named) if Path(named).is_file() else folder / f"{name}{suffix}"
    if not script.is_file():
        raise ConfigError(f"--model-args {named}: no such script{did_you_mean(name, known)}")
    return script
