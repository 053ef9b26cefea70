"""Finds the Python that has a trainer: the one that the user names, or the first on PATH.

It is only ever run, with the environment of this process: nothing is installed there and nothing of it is imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from orl_core.errors import ConfigError
from orl_rollout.signals import children

VARIABLE = "ORL_TRAINER_PYTHON"
FIND_SECONDS = 60.0
_FIND = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else 3)"


def find_python(package: str, given: str | None = None) -> str:
    """Return the path of a Python that finds `package`: `given`, else $ORL_TRAINER_PYTHON, else the first on PATH.

    Raises:
        ConfigError: the one that was named does not run or does not find the package; or none on PATH does.
    """
    named = given or os.environ.get(VARIABLE)
    if named:
        found = str(Path(shutil.which(named) or named).absolute())
        if not _finds(found, package):
            raise ConfigError(f"{named}: this Python does not find `{package}`: name one that does with --python")
        return found
    for folder in os.get_exec_path():
        candidate = str(Path(folder) / "python3")
        if os.access(candidate, os.X_OK) and _finds(candidate, package):
            return candidate
    raise ConfigError(
        f"no python3 on PATH finds `{package}`: name the Python of its environment with --python, or set {VARIABLE}"
    )


def _finds(python: str, package: str) -> bool:
    try:
        asked = children.run([python, "-c", _FIND, package], folder=Path.home(), timeout=FIND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"{python}: cannot be run: {exc}") from exc
    return asked.returncode == 0
