"""Needs of a trainer's workers: variables, by name alone if they may hold secrets (law L6), a package, files, GPUs.

Workers read secrets from the environment that their cluster was started with, so names can be checked before anything
runs, here or on a machine that this one does not own. The module knows neither Ray nor a trainer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from msgspec import Struct, field
from orl_core import ConfigError, RunConfig
from orl_rollout.edge.secrets import PLATFORM_KEY, SecretEntry, entries_of
from orl_rollout.run_folder.tracking import WANDB_KEY


class RequiredEnv(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers import `package`; of each tuple in `variables`, one has to be set. `optional` may hold secrets too.

    `settings` are variables of the trainer's, with their values, which hold no secret. `paths` are files and folders
    that workers read and write on any node; `addresses` are the URLs of environments, which workers play on any node;
    `gpus` is the number of GPUs on all nodes together.
    """

    package: str = ""
    variables: tuple[tuple[str, ...], ...] = ()
    optional: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict[str, str])
    paths: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    gpus: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable that may hold a secret."""
        return (*(name for either in self.variables for name in either), *self.optional)

    def assignments(self, there: Container[str] = ()) -> str:
        """Return assignments for the front of a command, without variables in `there`; ends with a space."""
        return "".join(f"{name}=... " for name in self.missing(there))

    def missing(self, there: Container[str]) -> list[str]:
        """Return the variables to set if those in `there` are set."""
        return [either[-1] for either in self.variables if not any(name in there for name in either)]


def needs_of(config: RunConfig, package: str, *, tracked: bool, settings: Mapping[str, str]) -> RequiredEnv:
    """Return what the workers of `config` need; `tracked` tells whether they need a key of Weights & Biases.

    A secret is read from the variable of its name or of its upper-case form, whichever is set. One without a value here
    is left out of a rollout, so that no worker needs it.
    """
    environments = config.environments.values()
    scoped = _scoped(config)
    secrets: dict[tuple[str, ...], bool] = {}
    for entry in _entries(config):
        own = entry.name in scoped and entry.literal is not None
        secrets.setdefault((entry.own_variable,) if own else entry.variables, bool(entry.value))
    keys = [PLATFORM_KEY] if any(each.base_url is None or each.send_api_key for each in environments) else []
    keys += [WANDB_KEY] if tracked else []
    either = [*((key,) for key in keys), *(names for names, needed in secrets.items() if needed)]
    optional = tuple(name for names, needed in secrets.items() if not needed for name in names)
    addresses = tuple(dict.fromkeys(url for each in environments for url in each.addresses))
    return RequiredEnv(
        package=package, variables=tuple(either), optional=optional, settings=dict(settings), addresses=addresses
    )


def secrets_in_config(config: RunConfig) -> dict[str, str]:
    """Return secrets given in the configuration itself, by the variables that workers read them from.

    A secret with several values has a variable for each environment that gives one.
    """
    by_name: dict[str, str] = {}
    scoped = _scoped(config)
    for entry in _entries(config):
        if entry.literal is None:
            continue
        variable = entry.own_variable if entry.name in scoped else entry.name
        if by_name.setdefault(variable, entry.literal) != entry.literal:
            raise ConfigError(
                f"the secret `{entry.name}` has several values under the variable {variable}: rename one of the secrets"
            )
    return by_name


def _entries(config: RunConfig) -> list[SecretEntry]:
    """Return the secrets of all environments, each once."""
    return list(dict.fromkeys(entry for name in config.environments for entry in entries_of(config, name)))


def _scoped(config: RunConfig) -> set[str]:
    """Return the secrets whose values, or the variable in place of one, differ between environments."""
    by_name: dict[str, set[str | None]] = {}
    for entry in _entries(config):
        by_name.setdefault(entry.name, set()).add(entry.literal)
    return {name for name, values in by_name.items() if len(values) > 1}
