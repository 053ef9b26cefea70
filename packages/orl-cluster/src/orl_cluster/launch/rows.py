"""Rows of a trainer's data: tasks of orl, and beside them rows that the trainer plays and scores itself.

A task stands in a row's metadata, to which the trainer adds fields of its own. The file is judged before a GPU is asked
for; the trainer's data source would pass over a broken line, and a row without its fields would end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_core.task import Task

from orl_rollout.bounded_files import read_lines
from orl_rollout.cluster.argv import value_of
from orl_rollout.tasks import check_environment

_ROW = msgspec.json.Decoder(dict[str, Any])


def check_rows(path: Path, config: RunConfig, argv: Sequence[str]) -> None:
    """Read the rows of `path`, JSON lines, as the trainer would with the options `argv`; parquet is left to it.

    Raises:
        ConfigError: there is no row, or one that is no JSON object, lacks a field, or holds a task that cannot be
            played; names file and line.
    """
    if path.suffix == ".parquet":
        return
    needed = [name for option in ("--input-key", "--label-key") if (name := value_of(argv, option))]
    holds_task = value_of(argv, "--metadata-key") or "metadata"
    rows = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        rows += 1
        try:
            row = _ROW.decode(line)
            for name in needed:
                if name not in row:
                    raise ConfigError(f"it has no `{name}`")
            metadata: object = row.get(holds_task) or {}
            if not isinstance(metadata, dict):
                raise ConfigError(f"its `{holds_task}` is no object")
            if "env_name" in metadata:
                check_environment(task_in(cast("dict[str, Any]", metadata)), config)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
            raise ConfigError(f"{path}:{number}: {exc}") from exc
    if not rows:
        raise ConfigError(f"{path}: there is no row in it")


def is_task(sample: Any) -> bool:
    """Whether a row is a task of orl, or at least not one that the trainer could play alone."""
    metadata = metadata_of(sample)
    return metadata is None or "env_name" in metadata


def metadata_of(sample: Any) -> dict[str, Any] | None:
    """The metadata of `sample`; None where a data set holds something else there."""
    given: object = sample.metadata
    return cast("dict[str, Any]", given) if isinstance(given, dict) else None


def task_of(sample: Any) -> Task:
    """The task in a sample's metadata.

    Raises:
        ConfigError: there is none.
    """
    try:
        return task_in(sample.metadata)
    except (ConfigError, TypeError) as exc:
        raise ConfigError(f"row {sample.index}: {exc}") from exc


def task_in(metadata: Mapping[str, Any]) -> Task:
    """The task whose fields stand among others in `metadata`.

    Raises:
        ConfigError: they are no task's.
    """
    try:
        return msgspec.convert({name: metadata[name] for name in Task.__struct_fields__ if name in metadata}, Task)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"its metadata is no task of `orl prepare`: {exc}") from exc
