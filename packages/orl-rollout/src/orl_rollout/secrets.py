"""Secrets: where their values come from, and how their echoes are found in text (law L6).

A value lives in the environment of the process that needs it, under the secret's name or its upper-case form, or in the
configuration of this process. The module knows nothing of sessions, files or uploads: those ask it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import structs
from orl_core.config import RunConfig, Secret
from orl_core.errors import ConfigError
from orl_core.trajectory import Trajectory, Turn

from orl_rollout.text import map_strings, plain, strings_in

MASK = "[secret]"
SHORTEST = 4  # characters: shorter values stand in any text, so they cannot be told apart and are not searched for
ENCODED = 8  # characters: values from here on are also searched for in encoded forms


def api_key() -> str:
    """The platform's key, from the environment of this process; empty where there is none."""
    return os.environ.get("OPENREWARD_API_KEY", "")


def resolve_secrets(config: RunConfig, env_name: str) -> dict[str, Secret]:
    """The secrets of one environment, every one with its value: the configuration's own, then the environment's.

    Raises:
        ConfigError: a value is neither in the configuration nor in the process environment; names both.
    """
    resolved: dict[str, Secret] = {}
    for name, entry in {**config.secrets, **config.environments[env_name].secrets}.items():
        value = _value(name, entry)
        if not value:
            variables = " or ".join(dict.fromkeys((name, name.upper())))
            raise ConfigError(f"environment `{env_name}` needs the secret `{name}`: set the variable {variables}")
        resolved[name] = Secret(value=value, hosts=entry.hosts if isinstance(entry, Secret) else ())
    return resolved


def _value(name: str, entry: str | Secret | None) -> str:
    given = entry.value if isinstance(entry, Secret) else entry
    return given or os.environ.get(name) or os.environ.get(name.upper()) or ""


class Scrubber:
    """Finds echoes of secret values in text: as they are, JSON-escaped (also twice), and inside base64."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if len(value) >= SHORTEST for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)

    @classmethod
    def of(cls, config: RunConfig) -> Scrubber:
        """A scrubber of every secret that `config` names and this process has, and of the platform's key."""
        entries = [config.secrets, *(environment.secrets for environment in config.environments.values())]
        values = [_value(name, entry) for secrets in entries for name, entry in secrets.items()]
        return cls([*values, api_key()])

    def settled(self, text: str) -> int:
        """Where `text`, which goes on, can be cut so that no echo crosses the cut, whatever follows."""
        cut = max(0, len(text) - max(map(len, self._forms), default=1) + 1)
        while crossing := [at for form in self._forms if (at := _across(text, form, cut)) >= 0]:
            cut = min(crossing)
        return cut

    def find(self, text: str) -> bool:
        """Whether `text` echoes a secret."""
        return any(form in text for form in self._forms)

    def scrub(self, text: str) -> str:
        """`text` with every echo replaced by `[secret]`."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def find_in(self, tree: object) -> bool:
        """Whether any string in `tree`, of plain JSON types, echoes a secret."""
        return bool(self._forms) and self.find("\n".join(strings_in(tree)))

    def scrub_in(self, tree: Any) -> Any:
        """`tree`, of plain JSON types, with every string scrubbed, keys too."""
        return map_strings(tree, self.scrub)

    def mark(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory`, marked `leaked` if its text echoes a secret; such a one does not train."""
        if trajectory.leaked or not self.find_in(plain(without_ids(trajectory))):
            return trajectory
        return structs.replace(trajectory, leaked=True)

    def scrubbed(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with its text scrubbed and without ids, which would spell the secret; marked `leaked`."""
        bare = structs.replace(without_ids(trajectory), leaked=True)
        return msgspec.convert(self.scrub_in(plain(bare)), Trajectory)


def _across(text: str, form: str, cut: int) -> int:
    """Where a `form` in `text` begins that has characters on both sides of `cut`, or -1."""
    return text.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)


def without_ids(trajectory: Trajectory) -> Trajectory:
    """`trajectory` without token ids, logprobs and the engine's extras."""
    return structs.replace(trajectory, turns=tuple(_bare(turn) for turn in trajectory.turns))


def _bare(turn: Turn) -> Turn:
    generations = tuple(structs.replace(each, ids=(), logprobs=(), extras={}) for each in turn.generations)
    return structs.replace(turn, observation=(), generations=generations)


def _forms(value: str) -> Iterator[str]:
    yield value
    if len(value) < ENCODED:
        return
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
    raw = value.encode("utf-8", "surrogatepass")
    for before in range(3):
        yield from _base64_core(raw, before)


def _base64_core(raw: bytes, before: int) -> Iterator[str]:
    """The characters of base64 that `raw` alone decides when it starts `before` bytes after a boundary of three."""
    first = -(-before * 8 // 6) if before else 0
    last = (before + len(raw)) * 8 // 6
    padded = bytes(before) + raw
    yield base64.b64encode(padded).decode()[first:last]
    yield base64.urlsafe_b64encode(padded).decode()[first:last]
