"""Read orl's task from the metadata of a trainer's sample. Other rows are the trainer's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from orl_core.errors import ConfigError
from orl_core.task import Task
from orl_rollout.tasks.file import metadata_in, task_in


def is_task(sample: Any) -> bool:
    """Tell whether a row is a task of orl, or at least none that the trainer could play alone."""
    metadata = metadata_of(sample)
    return metadata is None or "env_name" in metadata


def metadata_of(sample: Any) -> dict[str, Any] | None:
    """Return the metadata of `sample`, in which a JSON text becomes its object; None if it holds something else."""
    with suppress(ConfigError):
        sample.metadata = metadata_in(sample.metadata)
        return sample.metadata
    return None


def task_of(sample: Any) -> Task:
    """Return the task in a sample's metadata.

    Raises:
        ConfigError: there is none.
    """
    try:
        return task_in(sample.metadata)
    except (ConfigError, TypeError) as exc:
        raise ConfigError(f"row {sample.index}: {exc}") from exc
