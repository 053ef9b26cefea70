"""A task: which episode of which environment is to be played; one row of tasks.jsonl.

`key` is a hash of the task's identity, stable across processes and machines. Trainers carry it as the row's `prompt`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from orl_core.errors import expect
from orl_core.names import is_path_name

PLAIN = "plain"  # `env_name` of a row without environment; names of environments have a slash


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task of an environment.

    `env_name` is the name in the configuration (`Organization/Environment`), `deployment_name` the name on the
    platform, `environment_name` the class served there (the variant), which becomes part of a URL. `index` is the
    position in `split`, None where the server only lists.

    Raises:
        ValueError: `environment_name` has other characters than A-Z, a-z, 0-9, `_`, `.`, `-`.
    """

    env_name: str
    deployment_name: str
    server_name: str = ""
    environment_name: str = ""
    namespace: str | None = None
    split: str = "train"
    index: int | None = None
    task_spec: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.environment_name and not is_path_name(self.environment_name):
            name = ascii(self.environment_name)  # whole: an echo of a secret that is cut could not be found
            raise ValueError(f"`environment_name` is {name}: use only letters, digits, `_`, `.` and `-`")

    @property
    def key(self) -> str:
        """Return `Organization/Environment/split/` and 16 hexadecimal digits of the specification's hash."""
        where = [self.env_name, self.deployment_name, self.environment_name, self.split]
        return f"{self.env_name}/{self.split}/{_digest(where, self.task_spec or self.index)}"

    @property
    def content(self) -> str:
        """Return a hash of what a session begins with: two splits, or two names of one deployment, may share a task."""
        return _digest([self.deployment_name, self.environment_name], self.task_spec or f"{self.split}/{self.index}")


def _digest(*identity: object) -> str:
    import hashlib  # loads OpenSSL: milliseconds that no other user of this package should pay

    return hashlib.blake2b(msgspec.json.encode(identity, order="sorted"), digest_size=8).hexdigest()


class TaskRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of tasks.jsonl, the form that every backend reads: `prompt` is the task's key."""

    prompt: str
    label: str = ""
    metadata: Task


def row_of(task: Task) -> TaskRow:
    """Return the row of `task`."""
    expect(Task, "task", task)
    return TaskRow(prompt=task.key, metadata=task)
