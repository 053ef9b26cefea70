"""Evaluation sets of a run: the held-out tasks of each environment and split, in a file of their own.

Trainers log each set by its name, `Organization/Environment/split`. A set without tasks is left out, because trainers
divide by the number of its rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import msgspec
from orl_core.task import Task, row_of
from orl_rollout.edge.files import replace
from orl_rollout.run_folder.contract import Run
from orl_rollout.tasks.file import read_tasks


def eval_options(run: Run) -> tuple[str | Path, ...]:
    """Return names and files of the sets, in turn. A dry run has no tasks yet: then they are all that are configured.

    Raises:
        ConfigError: a row of the run's file cannot be played.
    """
    if run.eval_data is None:
        return ()
    names = list(_sets(run.eval_data, run)) if run.eval_data.is_file() else _configured(run)
    return tuple(chain.from_iterable((name, _path(run, name)) for name in names))


def write_eval_sets(run: Run) -> None:
    """Write the files of the sets."""
    if run.eval_data is None:
        return
    for name, tasks in _sets(run.eval_data, run).items():
        path = _path(run, name)
        path.parent.mkdir(exist_ok=True)
        replace(path, b"".join(msgspec.json.encode(row_of(task), order="sorted") + b"\n" for task in tasks))


def _sets(eval_data: Path, run: Run) -> dict[str, Sequence[Task]]:
    """Return the tasks of each set that has any, the sets in the order of the configuration."""
    sets: dict[str, list[Task]] = {name: [] for name in _configured(run)}
    for task in read_tasks(eval_data, run.config):
        sets.setdefault(_name(task.env_name, task.split), []).append(task)
    return {name: tasks for name, tasks in sets.items() if tasks}


def _configured(run: Run) -> list[str]:
    environments = run.config.environments.items()
    return list(dict.fromkeys(_name(name, split) for name, one in environments for split in one.eval_splits))


def _name(environment: str, split: str) -> str:
    return f"{environment}/{split}"


def _path(run: Run, name: str) -> Path:
    return (run.folder / "eval_sets" / f"{quote(name, safe='')}.jsonl").absolute()
