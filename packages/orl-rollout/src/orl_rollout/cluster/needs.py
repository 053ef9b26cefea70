"""What a trainer's workers need of their environment: the names of variables, never their values (law L6).

Workers read secrets from the environment that their cluster was started with, so names can be checked before anything
runs, here or on a machine that this one does not own. The module knows neither Ray nor a trainer.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec import Struct
from orl_core.config import RunConfig, Secret
from orl_core.errors import ConfigError

PLATFORM, TRACKER = "OPENREWARD_API_KEY", "WANDB_API_KEY"


class Needs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`package` is what workers import; of each tuple in `variables`, one has to be set."""

    package: str = ""
    variables: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable that may hold a secret."""
        return tuple(name for either in self.variables for name in either)

    @property
    def assignments(self) -> str:
        """The variables as one would set them in front of a command, values left out; ends with a space."""
        return assignments(either[-1] for either in self.variables)

    def missing(self, there: Container[str]) -> list[str]:
        """The variables to be set where those in `there` are."""
        return [either[-1] for either in self.variables if not any(name in there for name in either)]


def assignments(names: Iterable[str]) -> str:
    """`A=... B=... `, or "" of no names."""
    return "".join(f"{name}=... " for name in names)


def needs_of(config: RunConfig, package: str, *, online: bool) -> Needs:
    """What the workers of `config` need; `online` says whether they report to Weights & Biases.

    A secret is read from the variable of its name or of its upper-case form, whichever is set.
    """
    environments = config.environments.values()
    secrets = dict.fromkeys([*config.secrets, *(name for each in environments for name in each.secrets)])
    keys = [PLATFORM] if any(each.base_url is None or each.send_api_key for each in environments) else []
    keys += [TRACKER] if online else []
    either = [*((key,) for key in keys), *(tuple(dict.fromkeys((name, name.upper()))) for name in secrets)]
    return Needs(package=package, variables=tuple(either))


def given_secrets(config: RunConfig) -> dict[str, str]:
    """The values that stand in the configuration itself, under the variables that workers read them from.

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
