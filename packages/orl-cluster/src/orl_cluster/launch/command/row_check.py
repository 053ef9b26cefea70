"""Rows of a trainer's data: tasks of orl, and rows that the trainer plays and scores itself.

A task is in a row's metadata, to which the trainer adds fields of its own. The file is checked before a GPU is asked
for: the trainer's data source would skip a broken line, and a row without its fields would end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.edge.files import read_lines
from orl_rollout.tasks.file import metadata_in, task_in

from orl_cluster.launch.argv import value_of

CHAT, REWARD_KEY = "--apply-chat-template", "--reward-key"
READ = ("--input-key", "--label-key", "--metadata-key", CHAT, REWARD_KEY)
_ROW = msgspec.json.Decoder(dict[str, Any])


def check_rows(path: Path, config: RunConfig, argv: Sequence[str]) -> int | None:
    """Read the rows of `path`, JSON lines, as the trainer would with the options `argv`; parquet is left to it.

    Return the number of rows that are no tasks; None for parquet.
    """
    if path.suffix == ".parquet":
        return None
    options = {name: value_of(argv, name) for name in READ}
    rows = plain = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        rows += 1
        try:
            plain += _is_plain(_ROW.decode(line), options, config)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
            raise ConfigError(f"{path}:{number}: {exc}") from exc
    if not rows:
        raise ConfigError(f"{path}: there is no row in it")
    return plain


def _is_plain(row: Mapping[str, Any], options: Mapping[str, str | None], config: RunConfig) -> bool:
    """Check a row, and tell whether it is no task."""
    for option in ("--input-key", "--label-key"):
        if (name := options[option]) and name not in row:
            raise ConfigError(f"it has no `{name}`")
    metadata = metadata_in(row.get(options["--metadata-key"] or "metadata"))
    if "env_name" in metadata:
        config.environment(task_in(metadata).env_name)
        if key := options[REWARD_KEY]:
            raise ConfigError(f"{REWARD_KEY} {key}: a task's reward is one number and has no key. Remove it")
        return False
    prompt = options["--input-key"] or "input"
    if isinstance(row.get(prompt), list) and options[CHAT] is None:
        raise ConfigError(f"its `{prompt}` is a list of messages: give {CHAT} after `--`")
    return True
