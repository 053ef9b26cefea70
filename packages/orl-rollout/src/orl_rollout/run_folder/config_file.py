"""config.json of a run: the resolved configuration without the values of its secrets."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, cast

import msgspec
from orl_core.config import RunConfig

from orl_rollout.edge.files import replace


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the configuration of the run in `folder`."""
    write_object(folder / "config.json", config.public())


def write_object(path: Path, tree: object) -> None:
    """Write a JSON object into a file of a run, for people to read."""
    replace(path, msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run; an empty one if there is none or it is torn."""
    try:
        tree = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}


def date_of(config: RunConfig) -> date:
    """Return the date that chat templates show, the same one in every process of the run.

    It is the configuration's, else that of the run whose checkpoint this one begins with, else today.
    """
    begins_with = (config.trainer.load, config.trainer.model)
    inherited = (_date_of(Path(place)) for place in begins_with if place)
    return config.chat_template_date or next(filter(None, inherited), None) or date.today()


def name_of(config: RunConfig, launch: str = "") -> str:
    """Return the run's name at OpenReward: OPENREWARD_RUN_NAME, else its `launch`, else as the configuration says.

    Every launch has a name of its own, so that two of one file are two runs there.
    """
    return os.environ.get("OPENREWARD_RUN_NAME") or launch or config.openreward_run_name


def _date_of(checkpoint: Path) -> date | None:
    """Return the date of the run that `checkpoint` belongs to; None if it belongs to no run."""
    for folder in (checkpoint, checkpoint.parent):
        with suppress(msgspec.ValidationError):
            tree = read_object(folder / "config.json")
            if "chat_template_date" in tree:
                return msgspec.convert(tree["chat_template_date"], date | None)
    return None
