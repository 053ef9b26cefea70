"""The playground: environments and a tiny model that come with the command, so that a first try needs nothing else.

The command serves every environment of the organisation `playground` without a `base_url` on free loopback ports while
it runs, with a process for each four cores, four at most. A model named `playground/...` knows the form of play; it is
made once and cached (`made_models`). The playground is imported only if a configuration asks for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, SessionError, boundary
from orl_core.text import did_you_mean
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import cache_folder

from orl_launcher import cli
from orl_launcher.view.progress import counting
from orl_launcher.view.wording import percent

ORGANISATION = "playground/"


def served_here(config: RunConfig) -> tuple[str, ...]:
    """Return the environments that the command has to serve."""
    return tuple(
        name
        for name, environment in config.environments.items()
        if name.startswith(ORGANISATION) and environment.base_url is None
    )


def reachable(config: RunConfig, urls: Sequence[str] = ("http://127.0.0.1",), model: str | None = None) -> RunConfig:
    """Return `config` with `urls` for the environments that the command serves, and with the `model` that it made.

    A plan needs no real address.
    """
    served = {name: structs.replace(config.environments[name], base_url=tuple(urls)) for name in served_here(config)}
    if served and find_spec("orl_playground"):
        from orl_playground.server import ENVIRONMENTS

        for name, environment in served.items():
            wanted = (environment.variant or name.removeprefix(ORGANISATION)).lower()
            if wanted not in ENVIRONMENTS:
                near = did_you_mean(wanted, ENVIRONMENTS)
                raise ConfigError(f"{name}: the playground has {', '.join(ENVIRONMENTS)}{near}")
    trainer = structs.replace(config.trainer, model=model or config.trainer.model)
    return structs.replace(config, environments={**config.environments, **served}, trainer=trainer)


@contextmanager
def playground(config: RunConfig, model: str | None = None) -> Generator[RunConfig]:
    """Serve the playground's environments while the block runs. Yield `config` as `reachable` makes it."""
    if not served_here(config):
        yield reachable(config, model=model)
        return
    require("orl_playground", "the playground's environments")
    from orl_playground.server import processes_for, serving

    reachable(config)  # a misspelt name is refused before the server starts
    with ExitStack() as stack:
        with boundary(SessionError, "starting the playground's server"):
            urls = stack.enter_context(serving(processes=processes_for(os.cpu_count()), check=interrupt.check))
        yield reachable(config, urls, model)


def made_model(config: RunConfig) -> tuple[str | None, dict[str, Any]]:
    """Return the path of the playground's model that `config` names, made unless it is in the cache.

    The facts are for summary.json: the seconds of the warm start, and whether it was in the cache. The name of another
    model stays as it is, without facts.
    """
    model, folder = config.trainer.model, _folder_of(config)
    if folder is None:
        return model, {}
    from orl_launcher.made_models import cached_model

    cached = folder.is_dir()
    if not cached:
        cli.console().print(f"making the model {model}, once: a few minutes. It is kept in {cache_folder()}")
    with boundary(ConfigError, f"making the model {model}"), counting(cli.console()) as show:

        def count(step: int, total: int) -> None:
            interrupt.check()
            show(step, total, f"  {percent(step / total)}")

        cached_model(config, cache_folder(), count)
    seconds = json.loads((folder / "warm_start.json").read_text(encoding="utf-8"))["seconds"]
    return str(folder), {"model": model, "warm_start_cached": cached, "seconds_warm_start": seconds}


def first_model(config: RunConfig) -> str | None:
    """Return the checkpoint that a warm start of the user's begins with.

    It is the published model as its package has it. The tiny model knows nothing before it was taught its game.
    """
    from orl_launcher.made_models import PUBLISHED, converted

    model = config.trainer.model or ""
    if model.lower() != ORGANISATION + PUBLISHED:
        return made_model(config)[0]
    with boundary(ConfigError, f"converting the model {model}"):
        return str(converted(cache_folder()))


def is_made(config: RunConfig) -> bool:
    """Tell whether `made_model` has nothing to make."""
    folder = _folder_of(config)
    return folder is None or folder.is_dir()


def _folder_of(config: RunConfig) -> Path | None:
    """Return the folder of the playground's model in the cache; None if `config` names another one."""
    if not (config.trainer.model or "").startswith(ORGANISATION):
        return None
    from orl_launcher.made_models import checkpoint_folder

    require("torch", "models of the playground")
    require("orl_playground", "models of the playground")
    return checkpoint_folder(config, cache_folder())


def require(module: str, what: str) -> None:
    """Check that an optional package is installed, or say how to install it."""
    if find_spec(module) is None:
        raise cli.UsageError(f"{module}: not installed, but {what} need it. Run {cli.to_install(cli.backend_of())}")
