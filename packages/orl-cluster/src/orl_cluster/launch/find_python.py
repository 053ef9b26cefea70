"""Finds the Python that has a trainer: the one that the user names, or the first on PATH.

It is only ever run, with the environment of this process: nothing is installed there and nothing of it is imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError
from orl_rollout.signals import children

from orl_cluster.launch.options import CheckoutOptions, cluster_of

VARIABLE = "ORL_TRAINER_PYTHON"
FIND_SECONDS = 60.0
_FIND = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else 3)"


class NotInstalledError(ConfigError):
    """No Python on PATH has the trainer, and none was named."""


def search_path(package: str, trainer: TrainerConfig) -> dict[str, str]:
    """Return PYTHONPATH with the checkouts of `package` and Megatron-LM that are named in front; else nothing.

    Raises:
        ConfigError: a folder that is named is no checkout.
    """
    named = (f"--{package}-path", trainer.section(package, CheckoutOptions).path, "train.py")
    folders: list[str] = []
    for option, given, held in (named, ("--megatron-path", cluster_of(trainer).megatron_path, "megatron")):
        if given is None:
            continue
        folder = Path(given).expanduser().absolute()
        if not (folder / held).exists():
            raise ConfigError(f"{option} {given}: no {held} is in it. Name the folder of a checkout")
        folders.append(str(folder))
    inherited = [path] if (path := os.environ.get("PYTHONPATH")) else []
    return {"PYTHONPATH": os.pathsep.join([*folders, *inherited])} if folders else {}


def find_python(package: str, given: str | None = None, path: Mapping[str, str] | None = None) -> str:
    """Return the path of a Python that finds `package`: `given`, else $ORL_TRAINER_PYTHON, else the first on PATH.

    `path` is the result of `search_path`.

    Raises:
        ConfigError: the one that was named does not run or does not find the package.
        NotInstalledError: none was named, and none on PATH finds it.
    """
    environment = {**os.environ, **(path or {})}
    named = given or os.environ.get(VARIABLE)
    if named:
        found = str(Path(shutil.which(named) or named).absolute())
        if not _finds(found, package, environment):
            raise ConfigError(f"{named}: this Python does not find `{package}`: name one that does with --python")
        return found
    for folder in os.get_exec_path():
        candidate = str(Path(folder) / "python3")
        if os.access(candidate, os.X_OK) and _finds(candidate, package, environment):
            return candidate
    raise NotInstalledError(
        f"no python3 on PATH finds `{package}`: name the Python of its environment with --python, or set {VARIABLE}"
    )


def _finds(python: str, package: str, environment: Mapping[str, str]) -> bool:
    command = [python, "-c", _FIND, package]
    try:
        asked = children.run(command, environment=environment, folder=Path.home(), timeout=FIND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"{python}: cannot be run: {exc}") from exc
    return asked.returncode == 0
