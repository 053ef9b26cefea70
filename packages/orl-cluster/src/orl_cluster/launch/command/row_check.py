"""Rows of a trainer's data: tasks of orl, and beside them rows that the trainer plays and scores itself.

A task is in a row's metadata, to which the trainer adds fields of its own. The file is checked before a GPU is asked
for: the trainer's data source would skip a broken line, and a row without its fields would end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.edge.files import read_lines
from orl_rollout.tasks.file import metadata_in, task_in

from orl_cluster.launch.argv import value_of

CHAT, REWARD_KEY = "--apply-chat-template", "--reward-key"
_ROW = msgspec.json.Decoder(dict[str, Any])


class _Keys(Struct, frozen=True):
    """The keys of a row's prompt, label and metadata, and whether the trainer renders lists of messages.

    `reward` is the key of `--reward-key`, under which the trainer reads every reward; "" if there is none.
    """

    needed: tuple[str, ...]
    prompt: str
    metadata: str
    chat: bool
    reward: str

    @classmethod
    def of(cls, argv: Sequence[str]) -> Self:
        """Read them from the trainer's options."""
        needed = tuple(name for option in ("--input-key", "--label-key") if (name := value_of(argv, option)))
        prompt, metadata = value_of(argv, "--input-key") or "input", value_of(argv, "--metadata-key") or "metadata"
        return cls(needed, prompt, metadata, value_of(argv, CHAT) is not None, value_of(argv, REWARD_KEY) or "")


def check_rows(path: Path, config: RunConfig, argv: Sequence[str]) -> int | None:
    """Read the rows of `path`, JSON lines, as the trainer would with the options `argv`; parquet is left to it.

    Return the number of rows that are no tasks; None for parquet.

    Raises:
        ConfigError: there is no row, or one that is no JSON object, lacks a field, or holds a task that cannot be
            played; names file and line.
    """
    if path.suffix == ".parquet":
        return None
    keys = _Keys.of(argv)
    rows = plain = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        rows += 1
        try:
            plain += _is_plain(_ROW.decode(line), keys, config)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
            raise ConfigError(f"{path}:{number}: {exc}") from exc
    if not rows:
        raise ConfigError(f"{path}: there is no row in it")
    return plain


def _is_plain(row: Mapping[str, Any], keys: _Keys, config: RunConfig) -> bool:
    """Check a row, and tell whether it is no task.

    Raises:
        ConfigError: the trainer, or orl, cannot play it.
    """
    for name in keys.needed:
        if name not in row:
            raise ConfigError(f"it has no `{name}`")
    metadata = metadata_in(row.get(keys.metadata))
    if "env_name" in metadata:
        config.environment(task_in(metadata).env_name)
        if keys.reward:
            raise ConfigError(f"{REWARD_KEY} {keys.reward}: a task's reward is one number and has no key. Remove it")
        return False
    if isinstance(row.get(keys.prompt), list) and not keys.chat:
        raise ConfigError(f"its `{keys.prompt}` is a list of messages: give {CHAT} after `--`")
    return True
