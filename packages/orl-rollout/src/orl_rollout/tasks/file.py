"""Read tasks.jsonl, check each task against the configuration, and make tasks of plain rows. It opens no connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_core.task import Task, TaskRow

from orl_rollout.bounded_files import read_lines
from orl_rollout.tasks.plain import PlainRow, plain_task

_ROW = msgspec.json.Decoder(TaskRow)
_PLAIN_ROW = msgspec.json.Decoder(PlainRow)


def read_tasks(path: str | Path, config: RunConfig) -> Iterator[Task]:
    """Yield the tasks of a file that `prepare` wrote, each of an environment of `config`, and those of plain rows.

    Raises:
        ConfigError: the file cannot be read, a row is no task of a configured environment, or a plain row has no
            reward function; names file and line.
    """
    try:
        for number, line in enumerate(read_lines(Path(path)), 1):
            try:
                task = _ROW.decode(line).metadata if b'"env_name"' in line else _plain_task(line, config)
                config.environment(task.env_name)
            except RecursionError as exc:  # its text differs between versions of Python
                raise ConfigError(f"{path}:{number}: the row is nested too deep") from exc
            except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
                raise ConfigError(f"{path}:{number}: {exc}") from exc
            yield task
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc


def _plain_task(line: bytes, config: RunConfig) -> Task:
    task = plain_task(_PLAIN_ROW.decode(line))
    if config.reward is None:
        raise ConfigError("it is a plain row, which only your own function scores: set `reward: module:function`")
    if config.reward_mode == "scale":
        raise ConfigError("it is a plain row, whose reward of 0 `reward_mode: scale` would keep: use replace or add")
    return task


def task_in(metadata: Mapping[str, Any]) -> Task:
    """Return the task whose fields stand among others in `metadata`.

    Raises:
        ConfigError: they are no task's.
    """
    try:
        return msgspec.convert({name: metadata[name] for name in Task.__struct_fields__ if name in metadata}, Task)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"its metadata is no task of `orl prepare`: {exc}") from exc
