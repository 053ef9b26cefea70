"""`orl warm-start`: supervised training on episodes before any trainer, and the figures of the checkpoint.

A source gives episodes: a function that plays, the journal of a run, or conversations in the chat format. The trainer's
own update trains on them.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import msgspec
from orl_core import ConfigError, RunConfig
from orl_core.reward import reaches
from orl_rollout import Engine, Outcome
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import replace
from orl_rollout.run_folder.checkpoint import Checkpoint, lasting_name, write_note
from orl_rollout.run_folder.contract import CHECKPOINT, WarmStart

from orl_launcher import cli, invocation
from orl_launcher.configuration import refuse_missing, resolve
from orl_launcher.episodes import ScriptedPlayer, conversations, journalled, load_function
from orl_launcher.playground import first_model, playground, warm_starter
from orl_launcher.trainers import PLAYED, add_shared
from orl_launcher.view.progress import counting

DESCRIPTION = """\
Teach a model the form of play before any trainer: supervised training on episodes, with a loss on the model's own
tokens alone. The episodes are played by a function of yours, taken from a run's journal, or read from a file.
The result is a run's folder: name it with --model.
"""
EXAMPLES = """\
  orl warm-start --config my.yaml --player my_module:answer         a function that answers with calls
  orl warm-start --config my.yaml --player my_module:answer --min-reward 1
  orl warm-start --config my.yaml --journal runs/NAME --min-reward 1     the episodes of a run with the full reward
  orl warm-start --config my.yaml --rows chats.jsonl                {"messages": [...], "tools": [...]} in each line
  orl train local --config my.yaml --model runs/NAME                  and train the result
"""
EPISODES = 2_000  # most that a function plays
CONCURRENCY = 64
HELD_OUT = 0.05  # of the episodes, and at least one


def add_options(parser: cli.Parser) -> None:
    """Add the options of `orl warm-start`."""
    cli.add_config(parser)
    add_shared(parser, PLAYED)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--player", metavar="MODULE:FUNCTION", help="your function: messages in, calls or a text out")
    source.add_argument("--journal", metavar="DIR", type=Path, help="folder of a run, whose training episodes are used")
    source.add_argument("--rows", metavar="FILE", type=Path, help="conversations in the chat format, one in each line")
    parser.add_argument(
        "--min-reward", type=float, metavar="X", help="leave out episodes with less reward (default: none)"
    )
    for name, kind, what in (("steps", cli.positive, "steps"), ("batch-size", cli.positive, "rows"), ("lr", _rate, "")):
        usual = f"{what or 'first rate'} of training (default: as the model's size asks for)"
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar="N", help=usual)
    cli.add_name(parser)


def _rate(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, not {text!r}")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Gather episodes, train, and print the figures."""
    from orl_rollout.run_folder.config_file import write_config

    started = time.monotonic()
    if arguments.rows and arguments.min_reward is not None:
        raise cli.UsageError("--min-reward: conversations have no reward. Leave it out")
    config, folder, _ = resolve(arguments, "{}-warm-start", model="needed")
    refuse_missing(config)
    player = ScriptedPlayer(load_function(arguments.player), arguments.player) if arguments.player else None
    with playground(config, first_model(config)) as reachable:
        model = str(reachable.trainer.model)
        options = argparse.Namespace(**(warm_starter().recipe(model) | vars(arguments)))
        outcomes = _read(reachable, model, options)
        cli.make_folder(folder)
        write_config(folder, config)
        cli.console().print(f"warm start {folder}", style="bold")
        if player:
            outcomes = interrupt.run(_played(reachable, folder, player, options.steps * options.batch_size))
        figures = _train(reachable, _good(outcomes, options.min_reward), options, folder)
    figures["seconds_total"] = round(time.monotonic() - started, 1)
    replace(folder / "summary.json", msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    named = f"--config {arguments.config} --model {folder}"
    cli.console().print(
        f"held-out loss {figures['held_out_loss']:.3g} over {figures['held_out_episodes']} episodes, in training "
        f"{figures['train_loss']:.3g}. To train the model: {invocation()} train {config.trainer.backend} {named}. "
        f"To play with it: {invocation()} rollout {named}"
    )
    return 0


def _read(config: RunConfig, model: str, options: argparse.Namespace) -> list[Outcome]:
    """Return the episodes that are there already."""
    from orl_core.task import PLAIN
    from orl_rollout.tokenizer.tokenizer import open_renderer, open_tokenizer

    if options.rows:
        renderer = open_renderer(config, open_tokenizer(config, model))
        return [*conversations(options.rows, renderer, config.limits(PLAIN))]
    return [*journalled(options.journal, open_tokenizer(config, model))] if options.journal else []


async def _played(config: RunConfig, folder: Path, player: ScriptedPlayer, most: int) -> list[Outcome]:
    """Play the tasks to train on, again and again, until there is an episode for each row that trains."""
    from orl_rollout.runtime.stack import open_runtime
    from orl_rollout.tasks.file import read_tasks
    from orl_rollout.tasks.prepare import prepare
    from orl_rollout.training.play import Batch, play

    total = min(EPISODES, most)
    file = config.trainer.task_data
    if not file:
        await prepare(config, folder / "tasks.jsonl", seed=config.trainer.seed)
    tasks = cycle(read_tasks(file or folder / "tasks.jsonl", config))
    batch = Batch(tasks=[*islice(tasks, total)], name="warm-start", concurrency=CONCURRENCY)
    ended: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        ended.append(outcome)
        show(len(ended), total, f"episodes {len(ended)}/{total}")

    async with open_runtime(config, str(config.trainer.model), folder, 1, player) as runtime:
        with counting(cli.console()) as show:
            await play(batch, runtime, cast("Engine", player), keep, stopped=interrupt.received)
    return ended


def _good(outcomes: Iterable[Outcome], least: float | None) -> list[Outcome]:
    """Return the episodes that may train, those with less reward than `least` left out. Refuse fewer than two."""
    every = [*outcomes]
    good = [
        outcome
        for outcome in every
        if any(any(datum.loss_mask) for datum in outcome.datums) and (least is None or reaches(outcome.reward, least))
    ]
    if len(good) < 2:
        condition = "" if least is None else f" and have a reward of {least:g} or more"
        errors = [f". The latest error: {error}" for outcome in every if (error := outcome.trajectory.error)]
        raise ConfigError(
            f"{len(good)} of {len(every)} episodes can train{condition}, and 2 are needed, one of them to be held out"
            f"{['', *errors][-1]}"
        )
    return good


def _train(config: RunConfig, outcomes: list[Outcome], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train, and return the figures of summary.json. Losses are means over trained tokens, in nats."""
    seed = config.trainer.seed
    chance = random.Random(seed)  # noqa: S311 - no secret is drawn
    shuffled = chance.sample(outcomes, len(outcomes))
    few = max(1, round(HELD_OUT * len(shuffled)))
    rows = [datum for outcome in shuffled[few:] for datum in outcome.datums if any(datum.loss_mask)]
    total = options.steps * options.batch_size
    rounds = (chance.sample(range(len(rows)), len(rows)) for _ in range(-(-total // len(rows))))
    start = WarmStart(
        model=str(config.trainer.model),
        output=folder / CHECKPOINT,
        rows=rows,
        order=[place for each in rounds for place in each][:total],
        batch_size=options.batch_size,
        lr=options.lr,
        held_out=[datum for outcome in shuffled[:few] for datum in outcome.datums],
        chat_template=config.chat_template,
        seed=seed,
    )
    with counting(cli.console()) as show:
        losses = warm_starter().train(
            start, lambda step, steps: show(step, steps, f"step {step}/{steps} on {len(rows)} rows")
        )
    trainer, began = cli.entry("orl.warm_starts").name, lasting_name(start.model)
    noted = Checkpoint(format="hf", trainer=trainer, model=began, tokenizer=str(start.output.absolute()))
    write_note(start.output, noted)
    return {
        "model": start.model,
        "episodes": len(outcomes),
        "rows": len(rows),
        "steps": start.steps,
        "held_out_episodes": few,
        "seed": seed,
        **losses,
    }
