"""The playground: environments and a tiny model that the command brings itself, so that a first try needs nothing.

An environment of the organisation `playground` without a `base_url` is served by the command, on a free loopback port,
for as long as the command runs. A model named `playground/<Environment>` is a tiny model that has learnt the form of
play; it is made once and kept in a cache. Nothing of the playground is imported before a configuration asks for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs
from orl_core.errors import ConfigError, SessionError, boundary
from orl_rollout.signals import interrupt

from orl_launcher import cli
from orl_launcher.view.progress import counting

if TYPE_CHECKING:
    from orl_core.config import RunConfig

ORGANISATION = "playground/"


def served_here(config: RunConfig) -> tuple[str, ...]:
    """The environments that the command has to serve."""
    return tuple(
        name
        for name, environment in config.environments.items()
        if name.startswith(ORGANISATION) and environment.base_url is None
    )


def reachable(config: RunConfig, base_url: str = "http://127.0.0.1") -> RunConfig:
    """`config` with the environments that the command serves at `base_url`: without one, as a plan needs it."""
    served = {name: structs.replace(config.environments[name], base_url=base_url) for name in served_here(config)}
    return structs.replace(config, environments={**config.environments, **served})


@contextmanager
def playground(config: RunConfig) -> Generator[RunConfig]:
    """`config` with every environment within reach: the playground's are served while the block runs.

    Raises:
        UsageError: the playground is asked for and not installed.
        SessionError: its server does not start.
    """
    if not served_here(config):
        yield config
        return
    require("orl_playground", "orl-playground", "the playground's environments")
    from orl_playground.server import serving

    with ExitStack() as stack:
        with boundary(SessionError, "starting the playground's server"):
            base_url = stack.enter_context(serving(check=interrupt.check))
        yield reachable(config, base_url)


def cache_folder() -> Path:
    """Where made models are kept: $ORL_CACHE, else `orl` in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("ORL_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "orl"


def warm_model(config: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """`config` with a checkpoint's path for a model of the playground, made where it is not in the cache yet.

    Returns facts for summary.json beside it: the seconds that the warm start took and whether it was in the cache.
    Another model is left as it is, without facts.

    Raises:
        UsageError: what makes models is not installed.
        ConfigError: there is no such model, or it cannot be made.
    """
    model = config.trainer.model or ""
    if not model.startswith(ORGANISATION):
        return config, {}
    require("torch", "orl-playground[model]", "models of the playground")
    from orl_playground.warm_start import ensure

    steps: list[int] = []
    with counting(f"making {model}: once, it is kept in {cache_folder()}", cli.console()) as told:

        def count(step: int, total: int) -> None:
            interrupt.check()
            steps.append(step)
            told(step, total)

        with boundary(ConfigError, f"making the model {model}"):
            name = model.removeprefix(ORGANISATION).lower()  # as the playground names its environments
            checkpoint = ensure(name, cache_folder(), config.trainer.seed, progress=count)
    made = json.loads((checkpoint / "warm_start.json").read_text(encoding="utf-8"))
    facts = {"model": model, "warm_start_cached": not steps, "seconds_warm_start": made["seconds"]}
    trainer = structs.replace(config.trainer, model=str(checkpoint))
    return structs.replace(config, trainer=trainer), facts


def is_made(config: RunConfig) -> bool:
    """Whether `warm_model` has nothing to make.

    Raises:
        UsageError: what makes models is not installed.
        ConfigError: there is no such model.
    """
    model = config.trainer.model or ""
    if not model.startswith(ORGANISATION):
        return True
    require("torch", "orl-playground[model]", "models of the playground")
    from orl_playground.warm_start import checkpoint_folder

    with boundary(ConfigError, f"looking for the model {model}"):
        name = model.removeprefix(ORGANISATION).lower()
        return checkpoint_folder(name, cache_folder(), config.trainer.seed).is_dir()


def baseline(config: RunConfig) -> dict[str, float]:
    """The success rate of a random player that heeds the replies, where it is known: for GuessNumber alone."""
    if tuple(config.environments) != ("playground/GuessNumber",) or find_spec("orl_playground") is None:
        return {}
    from orl_playground.guess_number import consistent_baseline

    return {"random_consistent_baseline": consistent_baseline()}


def require(module: str, package: str, what: str) -> None:
    """Check that an optional package is installed.

    Raises:
        UsageError: it is not; names the package that brings it.
    """
    if find_spec(module) is None:
        raise cli.UsageError(
            f"{module}: not in this environment, and {what} need it: pip install '{package}' brings it"
        )
