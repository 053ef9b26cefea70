"""`orl rollout`: play tasks without training, against a running engine or one in this process.

It prints metrics for each environment and pass@k, and writes a run's folder with one evaluation, for `orl show`.
"""

from __future__ import annotations

import argparse
import fcntl
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct, structs
from orl_core import ConfigError, OrlError, RunConfig, Task
from orl_core.text import visible
from orl_rollout import Engine, LocalEngine, read_journal
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import read_lines, replace
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.results.metrics import RolloutStats, evaluation_metrics, stats_of
from orl_rollout.results.outcome import Outcome, load_reward
from orl_rollout.run_folder.config_file import read_object, write_config
from orl_rollout.run_folder.contract import refuse_workers
from orl_rollout.run_folder.environments import record_versions
from orl_rollout.run_folder.metrics_log import append
from orl_rollout.run_folder.record import read_record
from orl_rollout.run_folder.summary import note_end
from orl_rollout.runtime.runtime import load_player
from orl_rollout.training.resume import check_resume

from orl_launcher import cli, invocation
from orl_launcher.configuration import refuse_missing, resolve
from orl_launcher.playground import made_model, playground
from orl_launcher.reports import RolloutReport, add_json, for_people, print_json
from orl_launcher.trainers import PLAYED, add_shared
from orl_launcher.view.evaluations import TASKS, silence
from orl_launcher.view.tables import overview
from orl_launcher.view.wording import percent

if TYPE_CHECKING:
    from orl_rollout.training.play import Batch

DESCRIPTION = """\
Play tasks with a model, without training. Prints metrics for each environment and pass@k, and journals all episodes.
With --engine, a running server or router of SGLang or vLLM samples, and --model names the checkpoint that it serves.
Without it, the model runs in this process. Sampling parameters are those of `eval` in the file.
"""
EXAMPLES = """\
  orl rollout --config configs/local.yaml --max-tasks 64                     the tiny model, before any training
  orl rollout --config configs/local.yaml --model runs/NAME                  and after it
  orl rollout --config configs/local.yaml --split eval_splits                the tasks that training holds out
  orl rollout --config configs/whodunit.yaml --engine http://127.0.0.1:30000 --model Qwen/Qwen3-4B --samples 8
  orl rollout --config configs/local.yaml --agent my_module:agent            your own agent instead of the built-in loop
  orl rollout --config configs/local.yaml --agent 'my-agent --headless'      the same for a program
  orl rollout --continue runs/NAME                                           what an interrupted one has not played
"""
FIXED = ("eval", "success_reward", "chat_template_date", "load", "model", "allow_changes")  # where a run continues


class Played(Struct, frozen=True, kw_only=True):
    """The part of a rollout that the summary needs. Its ids and texts are only in the journal."""

    error: str
    stats: RolloutStats


def played_of(outcome: Outcome) -> Played:
    """Return what is kept of an outcome."""
    return Played(error=outcome.trajectory.error, stats=stats_of(outcome))


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl rollout`."""
    cli.add_config(options, required=False)
    tasks = options.add_mutually_exclusive_group()
    cli.add_split(tasks)
    tasks.add_argument(
        "--continue", dest="before", metavar="DIR", type=Path, help="play what this run of orl rollout still lacks"
    )
    options.add_argument(
        "--engine", type=cli.address, metavar="URL", help="server or router of SGLang or vLLM (default: in process)"
    )
    add_shared(options, PLAYED)
    cli.add_agent(options)
    tasks.add_argument(
        "--task-data", metavar="FILE", type=Path, help="file from orl prepare (default: list the tasks now)"
    )
    options.add_argument("--max-tasks", type=cli.positive, metavar="N", help="play at most N tasks")
    options.add_argument("--samples", type=cli.positive, metavar="K", help="rollouts of each task (default: 1)")
    options.add_argument("--concurrency", type=cli.positive, default=64, metavar="N", help="most at once (default: 64)")
    cli.add_name(options)
    add_json(options)


def run(arguments: argparse.Namespace) -> int:
    """Play the tasks, and print the metrics. The exit code is a failure above `max_error_rate`, and if all failed."""
    with for_people(arguments):
        report, fault = _rollout(arguments)
    if arguments.json:
        print_json(report)
    return cli.EXIT_FAILED if fault else 0


def _rollout(arguments: argparse.Namespace) -> tuple[RolloutReport, str]:
    from orl_rollout.training.play import Batch

    before, url = arguments.before, arguments.engine
    config, folder = _configured(arguments, before)
    refuse_missing(config)
    if url:
        from orl_launcher.doctor.engine import check_answers

        interrupt.run(check_answers(url))
    with playground(config, made_model(config)[0]) as reachable:
        if not before:
            cli.make_folder(folder)
        with _locked(folder):
            from orl_rollout.episodes.uploader import replace_lost

            replace_lost(folder)
            done = {one.key: played_of(one.outcome) for one in read_journal(folder) if not one.lost}
            batch = Batch(
                tasks=_tasks(reachable, folder, arguments),
                samples=config.eval.samples,
                seed=config.trainer.seed,
                sampling={"temperature": config.eval.temperature, "top_p": config.eval.top_p},
                evaluation=True,
                concurrency=arguments.concurrency,
                done=done.keys(),
            )
            interrupt.run(record_versions(reachable, folder))
            write_config(folder, config)
            cli.console().print(f"rollouts {folder}", style="bold")
            played, fault = [*done.values()], ""
            try:
                if len(done) < len(batch):
                    _play(reachable, folder, batch, url, played)
            except OrlError as exc:
                fault = str(exc)
                raise
            finally:
                with interrupt.held():  # a signal, too, keeps what was played
                    concluded = _conclude(config, played, folder, fault)
                    if concluded[1] or interrupt.received():
                        words = ["rollout", "--continue", str(folder), *(["--engine", url] if url else [])]
                        cli.console().print(f"To continue: {invocation()} {shlex.join(words)}")
    return concluded


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Let no other process play in `folder` while the block runs."""
    with (folder / "rollout.lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise cli.UsageError(f"--continue {folder}: another process plays there. Wait until it ends") from None
        yield


def _configured(arguments: argparse.Namespace, before: Path | None) -> tuple[RunConfig, Path]:
    """Return the configuration and the folder, which are those of the run `before` if there is one."""
    if before:
        arguments.task_data = before / TASKS
        if arguments.name or arguments.max_tasks or not arguments.task_data.is_file():
            raise ConfigError(f"--continue {before}: name a folder of orl rollout, without --name and --max-tasks")
    bare = read_object(before / "config.json") if before else None
    config, folder, _ = resolve(arguments, "" if before else "{}-rollout", bare=bare, model="needed")
    sampled = structs.replace(config.eval, samples=arguments.samples or (config.eval.samples if before else 1))
    config = structs.replace(config, eval=sampled, rollout=structs.replace(config.rollout, journal=None))
    if not arguments.engine:
        refuse_workers(config, "without --engine the model itself samples")
    load_reward(config)
    load_player(config)
    for line in check_resume(config, before, {}, FIXED):
        cli.console().print(line)
    return config, before or folder


def _tasks(config: RunConfig, folder: Path, arguments: argparse.Namespace) -> tuple[Task, ...]:
    """Return the tasks to play: of a file, else listed. Held-out ones are those of training's evaluations."""
    from orl_rollout.tasks.file import read_tasks
    from orl_rollout.tasks.prepare import HELD_OUT, TRAINING, prepare

    original = arguments.task_data or (None if config.environments else config.trainer.task_data)
    source = Path(original or folder / TASKS)
    splits = arguments.splits or [TRAINING]
    most: int | None = arguments.max_tasks or (config.eval.max_tasks if splits == [HELD_OUT] else None)
    if original is None:
        seed = config.trainer.seed
        unchecked = structs.replace(config, eval=structs.replace(config.eval, allow_overlap=True))  # nothing trains
        interrupt.run(prepare(unchecked, source, max_tasks=most, seed=seed, splits=splits))
    tasks = tuple(islice(read_tasks(source, config), most))
    if not tasks:
        raise ConfigError(f"{source}: holds no task. Write one with {invocation()} prepare")
    replace(folder / TASKS, b"".join(islice(read_lines(source), most)))
    return tasks


def _play(config: RunConfig, folder: Path, batch: Batch, url: str | None, played: list[Played]) -> None:
    """Play the batch, against a running engine or with the model on this thread. `played` gets each that ended."""
    from orl_rollout.engine_connection import Timeouts
    from orl_rollout.recognised_engine import RecognisedEngine
    from orl_rollout.runtime.workers import open_player
    from orl_rollout.training.play import play

    from orl_launcher.view.progress import counting

    def keep(outcome: Outcome) -> None:
        played.append(played_of(outcome))
        show(len(played), len(batch), _words(played, len(batch)))

    async def with_engine(engine: Engine) -> None:
        async with open_player(config, str(config.trainer.model), folder, batch.samples) as player:
            show(len(played), len(batch), "rollouts")
            await play(batch, player, engine, keep, stopped=interrupt.received)

    async def with_server(url: str) -> None:
        timeouts = Timeouts(retry=config.rollout.patience)
        async with RecognisedEngine(url, context_tokens=config.context_tokens, timeouts=timeouts) as engine:
            await with_engine(engine)

    with counting(cli.console()) as show:
        if url:
            interrupt.run(with_server(url))
        else:
            cast("LocalEngine", cli.entry("orl.engines").load())(str(config.trainer.model), with_engine)


def _words(played: Sequence[Played], total: int) -> str:
    judged = [one.stats.success for one in played if not one.error]
    words = [f"rollouts {len(played)}/{total}"]
    words += [f"success {percent(sum(judged) / len(judged))}"] if judged else []
    words += [f"{len(played) - len(judged)} in ERROR"] if len(played) > len(judged) else []
    return "  ".join(words)


def _conclude(config: RunConfig, played: Sequence[Played], folder: Path, fault: str) -> tuple[RolloutReport, str]:
    """Print and write the metrics. `fault` says why no more was played. Return why the command failed, too."""
    metrics = evaluation_metrics(one.stats for one in played)
    console = cli.console()
    append(folder / "metrics.jsonl", "eval", 0, metrics, seconds=0.0)
    errors = [one.error for one in played if one.error]
    latest, fault = (visible(" ".join(Scrubber.of(config).scrub(text).split())) for text in (["", *errors][-1], fault))
    if errors and len(errors) > min(config.rollout.max_error_rate * len(played), len(played) - 1):
        fault = fault or f"{len(errors)} of {len(played)} rollouts ended in ERROR, the latest: {latest}"
    note_end(config, folder, fault)
    record = read_record(folder)
    for shown in (*overview(record), *silence(record)):
        console.print(shown)
    if errors:
        console.print(f"{len(errors)} rollouts ended in ERROR and do not count. The latest error: {latest}")
    console.print(f"{len(played)} episodes. To show them: {invocation()} show {folder}")
    report = RolloutReport(
        folder=str(folder), rollouts=len(played), errors=len(errors), latest_error=latest, metrics=metrics
    )
    return report, fault
