"""Read tasks.jsonl and check each task against the configuration. It opens no connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_core.task import Task, TaskRow

from orl_rollout.bounded_files import read_lines


def read_tasks(path: str | Path, config: RunConfig) -> Iterator[Task]:
    """Yield the tasks of a file that `prepare` wrote, each of an environment of `config`.

    Raises:
        ConfigError: the file cannot be read, or a row is not a task of a configured environment; names file and line.
    """
    decoder = msgspec.json.Decoder(TaskRow)
    try:
        for number, line in enumerate(read_lines(Path(path)), 1):
            try:
                task = decoder.decode(line).metadata
                config.environment(task.env_name)
            except RecursionError as exc:  # its text differs between versions of Python
                raise ConfigError(f"{path}:{number}: the row is nested too deep") from exc
            except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
                raise ConfigError(f"{path}:{number}: {exc}") from exc
            yield task
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc


def task_in(metadata: Mapping[str, Any]) -> Task:
    """Return the task whose fields stand among others in `metadata`.

    Raises:
        ConfigError: they are no task's.
    """
    try:
        return msgspec.convert({name: metadata[name] for name in Task.__struct_fields__ if name in metadata}, Task)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"its metadata is no task of `orl prepare`: {exc}") from exc
