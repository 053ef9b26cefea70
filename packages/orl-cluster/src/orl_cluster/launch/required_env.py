"""Environment variables that a trainer's workers need: names alone of variables that may hold secrets (law L6).

Workers read secrets from the environment that their cluster was started with, so names can be checked before anything
runs, here or on a machine that this one does not own. The module knows neither Ray nor a trainer.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping

from msgspec import Struct, field
from orl_core.config import RunConfig, Secret
from orl_core.errors import ConfigError

PLATFORM, WANDB_KEY = "OPENREWARD_API_KEY", "WANDB_API_KEY"


class RequiredEnv(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers import `package`; of each tuple in `variables`, one has to be set.

    `settings` are variables of the trainer's, with their values, that a cluster is to be started with.
    """

    package: str = ""
    variables: tuple[tuple[str, ...], ...] = ()
    settings: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable that may hold a secret."""
        return tuple(name for either in self.variables for name in either)

    def assignments(self, there: Container[str] = ()) -> str:
        """Return assignments for the front of a command, without variables in `there`; ends with a space."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.settings.items()]
        return "".join(f"{word} " for word in [*words, *(f"{name}=..." for name in self.missing(there))])

    def missing(self, there: Container[str]) -> list[str]:
        """Return the variables to set if those in `there` are set."""
        return [either[-1] for either in self.variables if not any(name in there for name in either)]


def needs_of(config: RunConfig, package: str, *, tracked: bool, settings: Mapping[str, str]) -> RequiredEnv:
    """Return what the workers of `config` need; `tracked` tells whether they need a key of Weights & Biases.

    A secret is read from the variable of its name or of its upper-case form, whichever is set.
    """
    environments = config.environments.values()
    secrets = dict.fromkeys([*config.secrets, *(name for each in environments for name in each.secrets)])
    keys = [PLATFORM] if any(each.base_url is None or each.send_api_key for each in environments) else []
    keys += [WANDB_KEY] if tracked else []
    either = [*((key,) for key in keys), *(tuple(dict.fromkeys((name, name.upper()))) for name in secrets)]
    return RequiredEnv(package=package, variables=tuple(either), settings=dict(settings))


def secrets_in_config(config: RunConfig) -> dict[str, str]:
    """Return secrets given in the configuration itself, by the variables that workers read them from.

    Raises:
        ConfigError: two environments give one secret two values, which one variable cannot hold.
    """
    given: dict[str, str] = {}
    for environment in config.environments.values():
        for name, entry in {**config.secrets, **environment.secrets}.items():
            value = entry.value if isinstance(entry, Secret) else entry
            if value and given.setdefault(name, value) != value:
                raise ConfigError(
                    f"the secret `{name}` has several values in the configuration: workers read it from one variable"
                )
    return given
