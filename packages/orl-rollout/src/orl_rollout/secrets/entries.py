"""The secrets of a configuration, and where their values come from (law L6).

A value comes from the configuration, or from a variable with the secret's name or its upper-case form. An empty value
takes a secret away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from orl_core.config import RunConfig, Secret, Secrets
from orl_core.credentials import takes_secret


class SecretEntry(NamedTuple):
    """A secret of the configuration. `holder` is the environment in whose `secrets` it is, "" the top level."""

    name: str
    holder: str
    given: str | None
    hosts: tuple[str, ...]

    @property
    def own_variable(self) -> str:
        """Return the variable of this entry alone, from which workers read a value that the configuration gives."""
        return "ORL_SECRET_" + re.sub(r"\W", "_", f"{self.name}__{self.holder}" if self.holder else self.name).upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that a user sets: the secret's name, and its upper-case form."""
        return tuple(dict.fromkeys((self.name, self.name.upper())))

    @property
    def value(self) -> str:
        """Return the value, "" if there is none."""
        found = (os.environ.get(variable) for variable in (self.own_variable, *self.variables))
        return next(filter(None, found), "") if self.given is None else self.given


def entries_of(config: RunConfig, env_name: str) -> list[SecretEntry]:
    """Return the secrets of one environment. Its own replace those of the run; an empty value takes one away."""
    entries = {
        entry.name: entry
        for entry in [*_held(config.secrets, ""), *_held(config.environments[env_name].secrets, env_name)]
    }
    return [entry for entry in entries.values() if entry.given != ""]


def all_entries(config: RunConfig) -> list[SecretEntry]:
    """Return every secret as it stands in the configuration, those of the run first."""
    own = [entry for name, environment in config.environments.items() for entry in _held(environment.secrets, name)]
    return [*_held(config.secrets, ""), *own]


def agent_secrets(config: RunConfig) -> list[tuple[str, str]]:
    """Return the variables of this process that the agent's program gets and that take a secret, with their values."""
    given = config.agent_config.env if config.agent_config else {}
    names = [name for name, value in given.items() if value is None and takes_secret(name)]
    return [(name, os.environ.get(name, "")) for name in names]


def resolve_secrets(config: RunConfig, env_name: str) -> dict[str, Secret]:
    """Return the secrets of one environment with their values. One without a value is left out."""
    return {
        entry.name: Secret(value=entry.value, hosts=entry.hosts)
        for entry in entries_of(config, env_name)
        if entry.value
    }


def unset_secrets(config: RunConfig, env_name: str) -> list[SecretEntry]:
    """Return the secrets of one environment that have no value, here or in the configuration."""
    return [entry for entry in entries_of(config, env_name) if not entry.value]


def unset(entry: SecretEntry) -> str:
    """Say that a secret has no value, and what to do."""
    return (
        f"the secret `{entry.name}` has no value and is left out. If it is needed, set {' or '.join(entry.variables)}"
    )


def unset_in(config: RunConfig) -> list[str]:
    """Return a line for each secret that has no value in this process, and that rollouts leave out."""
    return list(dict.fromkeys(unset(entry) for name in config.environments for entry in unset_secrets(config, name)))


def _held(secrets: Secrets, holder: str) -> Iterator[SecretEntry]:
    for name, entry in secrets.items():
        hosted = entry if isinstance(entry, Secret) else Secret(value=entry)
        yield SecretEntry(name=name, holder=holder, given=hosted.value, hosts=hosted.hosts)
