"""Rows of a trainer's data: tasks of orl, and beside them rows that the trainer plays and scores itself.

A task is in a row's metadata, to which the trainer adds fields of its own. The file is checked before a GPU is asked
for: the trainer's data source would skip a broken line, and a row without its fields would end the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.bounded_files import read_lines
from orl_rollout.tasks.file import task_in

from orl_cluster.launch.argv import value_of

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
                config.environment(task_in(cast("dict[str, Any]", metadata)).env_name)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
            raise ConfigError(f"{path}:{number}: {exc}") from exc
    if not rows:
        raise ConfigError(f"{path}: there is no row in it")
