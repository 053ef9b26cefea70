"""`orl warm-start`: supervised training on episodes before any trainer, and the figures of the checkpoint.

A source gives episodes: a function that plays, the journal of a run, or conversations in the chat format.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from orl_core.errors import ConfigError
from orl_core.reward import reaches
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import replace
from orl_rollout.run_folder.checkpoint import Checkpoint, lasting_name, write_note
from orl_rollout.run_folder.contract import CHECKPOINT, WarmStart

from orl_launcher import cli, invocation
from orl_launcher.checkpoints import refuse_missing
from orl_launcher.commands import rollout
from orl_launcher.configuration import resolve
from orl_launcher.options import PLAYED, add_shared
from orl_launcher.playground import first_model, playground
from orl_launcher.trainers import holds_out
from orl_launcher.view.progress import counting

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_core.render import Renderer
    from orl_rollout.results.outcome import Outcome
    from orl_rollout.tokenizer.tokenizer import HFTokenizer

    from orl_launcher.warm_start.scripted import ScriptedPlayer

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
    sizes = (
        ("steps", cli.positive, "steps of training"),
        ("batch-size", cli.positive, "rows"),
        ("lr", _rate, "first rate"),
    )
    for name, kind, what in sizes:
        usual = f"{what} (default: as the model's size asks for)"
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar="N", help=usual)
    cli.add_name(parser)


def _rate(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, not {text!r}")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Gather episodes, train, print the figures, and play the held-out tasks as `orl rollout` does."""
    from orl_rollout.run_folder.config_file import write_config
    from orl_rollout.tokenizer.rendering import open_renderer, open_tokenizer

    from orl_launcher.warm_start.scripted import ScriptedPlayer, load_function
    from orl_launcher.warm_start.training import warm_start_trainer, warm_starter

    started = time.monotonic()
    if arguments.rows and arguments.min_reward is not None:
        raise cli.UsageError("--min-reward: conversations have no reward. Leave it out")
    config, folder, _ = resolve(arguments, "{}-warm-start", model="needed")
    starter = warm_starter()
    refuse_missing(config)
    player = ScriptedPlayer(load_function(arguments.player), arguments.player) if arguments.player else None
    with playground(config, first_model(config)) as reachable:
        arguments = argparse.Namespace(**(starter.recipe(str(reachable.trainer.model)) | vars(arguments)))
        tokenizer = open_tokenizer(reachable, str(reachable.trainer.model))
        renderer = open_renderer(reachable, tokenizer)
        outcomes = [] if player else _good(_read(arguments, reachable, tokenizer, renderer), arguments.min_reward)
        cli.make_folder(folder)
        write_config(folder, config)
        cli.console().print(f"warm start {folder}", style="bold")
        if player:
            outcomes = _good(interrupt.run(_played(reachable, folder, player, arguments)), arguments.min_reward)
        interrupt.check()
        figures = _train(reachable, outcomes, arguments, folder)
    figures["seconds_total"] = round(time.monotonic() - started, 1)
    replace(folder / "summary.json", msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    trainer = config.trainer.backend or warm_start_trainer()
    cli.console().print(
        f"held-out loss {figures['held_out_loss']:.3g} over {figures['held_out_episodes']} episodes, in training "
        f"{figures['train_loss']:.3g}. "
        f"To train the model: {invocation()} train {trainer} --config {arguments.config} --model {folder}",
    )
    if not holds_out(config):
        return 0
    played = vars(cli.Parser("rollout", ["--split", "eval_splits"]).parse())
    own = {"name": None, "samples": config.eval.samples, "trainer.load": None, "trainer.model": str(folder)}
    return rollout.run(argparse.Namespace(**(played | vars(arguments) | own)))


def _good(outcomes: Iterable[Outcome], least: float | None) -> list[Outcome]:
    """Return the episodes that may train, those with less reward than `least` left out.

    Raises:
        ConfigError: there are fewer than two.
    """
    every = [*outcomes]
    good = [
        outcome
        for outcome in every
        if any(any(datum.loss_mask) for datum in outcome.datums) and (least is None or reaches(outcome.reward, least))
    ]
    if len(good) < 2:
        condition = "" if least is None else f" and have a reward of {least:g} or more"
        raise ConfigError(
            f"{len(good)} of {len(every)} episodes can train{condition}, and one is held out: 2 are needed"
        )
    return good


def _read(
    arguments: argparse.Namespace, config: RunConfig, tokenizer: HFTokenizer, renderer: Renderer
) -> Iterator[Outcome]:
    from orl_core.config.limits import limits_of
    from orl_core.task import PLAIN

    from orl_launcher.warm_start.sources import conversations, journalled

    if arguments.rows:
        return conversations(arguments.rows, renderer, limits_of(config, PLAIN))
    return journalled(arguments.journal, tokenizer)


async def _played(
    config: RunConfig, folder: Path, player: ScriptedPlayer, arguments: argparse.Namespace
) -> list[Outcome]:
    """Play the tasks to train on, again and again, until there is an episode for each row that trains.

    Raises:
        ConfigError: the function fails.
    """
    from orl_rollout.loop.engine import Engine
    from orl_rollout.runtime.stack import open_runtime
    from orl_rollout.tasks.file import read_tasks
    from orl_rollout.tasks.prepare import prepare
    from orl_rollout.training.play import Batch, play

    total = min(EPISODES, arguments.steps * arguments.batch_size)
    file = config.trainer.task_data
    if not file:
        await prepare(config, folder / "tasks.jsonl", seed=config.trainer.seed)
    tasks = cycle(read_tasks(file or folder / "tasks.jsonl", config))
    batch = Batch(tasks=[*islice(tasks, total)], name="warm-start", concurrency=CONCURRENCY)
    ended = 0

    def keep(outcome: Outcome) -> Outcome:
        nonlocal ended
        if player.fault:
            raise ConfigError(str(player.fault))
        ended += 1
        show(ended, total, f"episodes {ended}/{total}")
        return outcome

    async with open_runtime(config, str(config.trainer.model), folder, 1, player) as runtime:
        with counting(cli.console()) as show:
            engine = cast("Engine", player)  # which answers for itself
            return await play(batch, runtime, engine, keep, stopped=interrupt.received)


def _train(config: RunConfig, outcomes: list[Outcome], arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train, and return the figures of summary.json. Losses are means over trained tokens, in nats."""
    from orl_launcher.warm_start.training import order_of, split, warm_start_trainer, warm_starter

    seed = config.trainer.seed
    training, held_out = split(outcomes, seed)
    rows = [datum for outcome in training for datum in outcome.datums if any(datum.loss_mask)]
    start = WarmStart(
        model=str(config.trainer.model),
        output=folder / CHECKPOINT,
        rows=rows,
        order=order_of(len(rows), arguments.steps * arguments.batch_size, seed),
        batch_size=arguments.batch_size,
        lr=arguments.lr,
        held_out=[datum for outcome in held_out for datum in outcome.datums],
        chat_template=config.chat_template,
        seed=seed,
    )
    with counting(cli.console()) as show:
        losses = warm_starter().train(
            start, lambda step, steps: show(step, steps, f"step {step}/{steps} on {len(rows)} rows")
        )
    began = lasting_name(start.model)
    noted = Checkpoint(format="hf", trainer=warm_start_trainer(), model=began, tokenizer=str(start.output.absolute()))
    write_note(start.output, noted)
    return {
        "model": start.model,
        "episodes": len(outcomes),
        "rows": len(rows),
        "steps": start.steps,
        "held_out_episodes": len(held_out),
        "seed": seed,
        **losses,
    }
