"""`orl train`: prepare a run's folder, hand it to a trainer's adapter, and write the report.

It knows no trainer. `orl_rollout.run_folder.contract` says what an adapter is handed and which files it leaves behind.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs
from orl_core import ConfigError, OrlError, RunConfig
from orl_core.text import visible
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.config_file import write_config
from orl_rollout.run_folder.contract import Run, Trainer
from orl_rollout.run_folder.record import read_record
from orl_rollout.run_folder.summary import note_interruption
from orl_rollout.training.resume import check_resume

from orl_launcher import cli, invocation
from orl_launcher.commands.upload import send_rest
from orl_launcher.configuration import last_in, refuse_missing, resolve
from orl_launcher.playground import is_made, made_model, playground, served_here
from orl_launcher.trainers import (
    WOULD_NOT_START,
    add_own,
    add_shared,
    find_trainer,
    holds_out,
    known,
    missing_tasks,
    plan_run,
    print_plan,
    task_data_of,
    unread,
)
from orl_launcher.view.evaluations import trained_nothing, untrained
from orl_launcher.view.wording import count, duration, flat

PREPARED = {
    "config.json",
    "environments.json",
    "tasks.jsonl",
    "eval_tasks.jsonl",
    "checkpoint",
}  # what a folder holds before its trainer begins

DESCRIPTION = """\
Train a model. `local` trains on this machine and brings its own engine; `slime` and `miles` train on a cluster.
The run's folder, runs/NAME, holds the configuration, tasks, metrics, journal, checkpoint, and report.html.
"""
EXAMPLES = """\
  orl train local                                     a tiny model learns a game, 3 minutes on two quiet cores
  orl train local --name longer --num-rollout 120 --lr 3e-4 --seed 1
  orl train local --config my.yaml --model Qwen/Qwen3-0.6B --set environments.Org/Env.max_turns=8
  orl train slime --config configs/whodunit.yaml --model /models/Qwen3-4B --task-data tasks.jsonl --dry-run
  orl train slime --config configs/whodunit.yaml -- --use-kl-loss --kl-loss-coef 0.01
  orl train miles --config configs/whodunit.yaml --model Qwen/Qwen3-4B -- --true-on-policy-mode
  orl train local --agent my_module:agent             your own agent plays, and the model in it trains

A trainer has options of its own. To show them:"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl train`."""
    options.add_argument("trainer.backend", type=known, metavar="TRAINER", help="trainer, the first word after `train`")
    cli.add_config(options, default=cli.DEFAULT_CONFIG)
    cli.add_name(options)
    options.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, show the plan, start nothing; exit code 1 if it would not start",
    )
    cli.add_python(options)
    cli.add_agent(options)
    add_shared(options.add_argument_group("options that every trainer obeys (they override `trainer` in the file)"))
    add_own(options)
    options.usage = "orl train TRAINER [options] [-- trainer arguments]"


def run(arguments: argparse.Namespace) -> int:
    """Train, and report also an interrupted run. A run of which no rollout could train has failed."""
    backend = vars(arguments)["trainer.backend"]
    if arguments.config == cli.DEFAULT_CONFIG and backend != cli.backend_of():
        written = f"{invocation()} init ENVIRONMENT --trainer {backend}"
        raise cli.UsageError(f"orl train {backend} needs --config. To write a file: {written}")
    config, folder, load = resolve(arguments, "{}")
    trainer = find_trainer(str(config.trainer.backend))
    changes = check_resume(config, load, trainer.defaults)
    if arguments.python and not trainer.packages:
        raise cli.UsageError(f"--python: {backend} runs in orl's own environment. Leave it out")
    if missing := missing_tasks(config):
        raise ConfigError(missing)
    if arguments.dry_run:
        return _print_plan(config, arguments, folder, changes)
    refuse_missing(config)
    if not is_made(config):  # its making takes minutes
        for problem in plan_run(config, folder, arguments.extra, arguments.python).problems:
            raise ConfigError(f"{WOULD_NOT_START}: {problem}")
    cli.make_folder(folder)

    def note() -> None:
        with suppress(OSError):  # the trainer has written one, or the disk is full
            note_interruption(config, folder)

    try:
        with interrupt.notified(note):
            _train(config, trainer, folder, arguments, changes)
    except KeyboardInterrupt:
        note()
        raise
    except OrlError:
        _remove_unstarted(folder)
        raise
    finally:
        with interrupt.held():  # a finished training keeps its report
            _conclude(folder, arguments)
        send_rest(config, folder)
    return cli.EXIT_FAILED if trained_nothing(read_record(folder)) else 0


def _remove_unstarted(folder: Path) -> None:
    """Remove the folder of a run that failed before it began: it holds nothing but what the command wrote."""
    if {path.name for path in folder.iterdir()} <= PREPARED:
        shutil.rmtree(folder)


def _train(
    config: RunConfig, trainer: Trainer, folder: Path, arguments: argparse.Namespace, changes: Sequence[str]
) -> None:
    from orl_rollout.run_folder.environments import record_versions

    from orl_launcher.view.progress import following

    started = time.monotonic()
    console = cli.console()
    console.print(f"run {folder}", style="bold")
    for note in (*changes, *unread(config)):
        console.print(note)
    write_config(folder, config)
    interrupt.check()
    model, facts = made_model(config)
    interrupt.check()
    with playground(config, model) as served:
        task_data, eval_data, shared = _tasks(served, folder)
        interrupt.run(record_versions(served, folder))
        job = Run(
            config=served,
            folder=folder,
            task_data=task_data,
            eval_data=eval_data,
            extra=arguments.extra,
            python=arguments.python,
            facts={**facts, **shared},
            started=started,
        )
        with following(folder / "metrics.jsonl", config.trainer.num_rollout, console):
            trainer.train(job)


def _tasks(config: RunConfig, folder: Path) -> tuple[Path, Path | None, dict[str, int]]:
    """Return the files of tasks to train on and to hold out, prepared if none are given, and the overlap of both."""
    from orl_rollout.edge.files import read_lines
    from orl_rollout.tasks.file import overlap, read_tasks, trained_tasks
    from orl_rollout.tasks.prepare import HELD_OUT, TRAINING, prepare

    from orl_launcher.commands.prepare import print_prepared

    seed, task_data = config.trainer.seed, task_data_of(config, folder)
    if not config.trainer.task_data:
        print_prepared(config, interrupt.run(prepare(config, task_data, seed=seed)), task_data, (TRAINING,))
    if not holds_out(config):
        return task_data, None, {}
    eval_data = folder / "eval_tasks.jsonl"
    interrupt.run(prepare(config, eval_data, max_tasks=config.eval.max_tasks, seed=seed, splits=(HELD_OUT,)))
    trained = trained_tasks(read_lines(task_data))
    return task_data, eval_data, {"overlap": overlap(config, trained, read_tasks(eval_data, config))}


def _conclude(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the report, and print the closing table and the command that continues an interrupted run."""
    from orl_launcher.view.report import write_report
    from orl_launcher.view.tables import overview

    if not (folder / "config.json").is_file():
        return
    record = read_record(folder)
    if not record.points:
        return
    console = cli.console()
    try:
        line = f"The report: {write_report(folder)}"
    except OSError as fault:  # the end of the training itself counts
        line = f"No report: {fault}"
    for table in overview(record):
        console.print(table)
    for remark in untrained(record):
        console.print(remark)
    seconds = record.summary.get("seconds_total")
    took = f" in {duration(seconds)}" if isinstance(seconds, int | float) and record.finished else " so far"
    console.print(f"{count(record.steps)}{took}. {line}")
    shown = f"{invocation()} show {folder}, or in a browser: {invocation()} view {folder}"
    console.print(f"To show the episodes: {shown}", style="dim")
    with suppress(ConfigError):  # it has no checkpoint
        if record.summary.get("interrupted") and last_in(folder):
            console.print(f"To continue: {_continuing(folder, arguments)}")


def _continuing(folder: Path, arguments: argparse.Namespace) -> str:
    """Return the command that continues the run in `folder` under another name."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--name", "--load"):
        named.add_argument(option)
    words = ["train", *named.parse_known_args(arguments.words)[1], "--load", str(folder)]
    return f"{invocation()} {shlex.join([*words, *(['--', *arguments.extra] if arguments.extra else [])])}"


def _print_plan(config: RunConfig, arguments: argparse.Namespace, folder: Path, changes: Sequence[str]) -> int:
    """Print settings and memory for people on stderr, and the plan on stdout. Return the exit code."""
    plan = plan_run(config, folder, arguments.extra, arguments.python)
    public: dict[str, Any] = config.public()
    console = cli.console(stderr=True)
    for setting, value in flat({key: public[key] for key in ("trainer", "environments", "eval")}):
        console.print(f"{setting:<48} {value}")
    if served := ", ".join(served_here(config)):
        console.print(f"would serve {served}")
    if not is_made(config):
        console.print(f"would make {config.trainer.model} first: the plan cannot look into it yet")
    if plan.memory:
        console.print(visible(plan.memory))
    return print_plan(structs.replace(plan, notes=(*plan.notes, *changes)))
