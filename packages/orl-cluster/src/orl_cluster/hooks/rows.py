"""Read orl's task from the metadata of a trainer's sample. Other rows are the trainer's own."""

from __future__ import annotations

from typing import Any, cast

from orl_core.errors import ConfigError
from orl_core.task import Task
from orl_rollout.tasks.file import task_in


def is_task(sample: Any) -> bool:
    """Tell whether a row is a task of orl, or at least none that the trainer could play alone."""
    metadata = metadata_of(sample)
    return metadata is None or "env_name" in metadata


def metadata_of(sample: Any) -> dict[str, Any] | None:
    """Return the metadata of `sample`; None if a data set holds something else there."""
    given: object = sample.metadata
    return cast("dict[str, Any]", given) if isinstance(given, dict) else None


def task_of(sample: Any) -> Task:
    """Return the task in a sample's metadata.

    Raises:
        ConfigError: there is none.
    """
    try:
        return task_in(sample.metadata)
    except (ConfigError, TypeError) as exc:
        raise ConfigError(f"row {sample.index}: {exc}") from exc
