"""`orl rollout`: play tasks without training, against a running engine or one in this process.

It prints metrics for each environment and pass@k, and writes a run's folder with one evaluation, for `orl show`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import entry_points
from itertools import islice, starmap, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct, structs
from orl_core.errors import ConfigError
from orl_core.text import visible
from orl_rollout.results.metrics import RolloutStats, metrics_of, stats_of
from orl_rollout.results.pass_at_k import mean_pass_at_k
from orl_rollout.run_folder.config_file import dated
from orl_rollout.run_folder.metrics_log import append
from orl_rollout.run_folder.record import is_run
from orl_rollout.secrets.secrets import Scrubber
from orl_rollout.signals import interrupt

from orl_launcher import cli
from orl_launcher.playground import playground, warm_model
from orl_launcher.trainer_options import add_option, overrides_of
from orl_launcher.view.tables import metrics_table, plain_table

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_core.task import Task
    from orl_rollout.loop.engine import Engine
    from orl_rollout.results.outcome import Outcome
    from orl_rollout.run_folder.contract import LocalEngine
    from orl_rollout.runtime.runtime import Runtime
    from rich.progress import Progress

DESCRIPTION = """\
Play tasks with a model, without training. Prints metrics for each environment and pass@k, and journals all episodes.
With --engine, a running SGLang server or router samples, and --model names the checkpoint that it serves.
Without it, the model runs in this process. Sampling parameters are those of `eval` in the file.
"""
EXAMPLES = """\
  orl rollout --config configs/local.yaml --max-tasks 64                     the tiny model, before any training
  orl rollout --config configs/local.yaml --model runs/NAME/checkpoint       and after it
  orl rollout --config configs/whodunit.yaml --engine http://127.0.0.1:30000 --model Qwen/Qwen3-4B --samples 8
"""


class RolloutPlan(Struct, frozen=True, kw_only=True):
    """The rollouts to play: `samples` of each task, `concurrency` at once, written to `folder`.

    `config` can reach every environment; `given` is the configuration before that, which is written down.
    """

    config: RunConfig
    given: RunConfig
    tasks: tuple[Task, ...]
    samples: int
    concurrency: int
    folder: Path


class Played(Struct, frozen=True, kw_only=True):
    """The part of a rollout that the summary needs. Its ids and texts are only in the journal."""

    task_key: str
    error: str
    stats: RolloutStats


def played_of(outcome: Outcome) -> Played:
    """Return the part of `outcome` that the summary needs."""
    trajectory = outcome.trajectory
    return Played(task_key=trajectory.job.task.key, error=trajectory.error, stats=stats_of(outcome))


def parser() -> cli.Parser:
    """Return the options of `orl rollout`."""
    made = cli.Parser("rollout", description=DESCRIPTION, examples=EXAMPLES)
    cli.add_config(made)
    made.add_argument(
        "--engine", type=cli.address, metavar="URL", help="an SGLang server or router (default: sample in this process)"
    )
    add_option(made, "model")
    made.add_argument("--task-data", metavar="FILE", type=Path, help="tasks.jsonl (default: list the tasks now)")
    made.add_argument("--max-tasks", type=cli.positive, metavar="N", help="play at most N tasks")
    made.add_argument("--samples", type=cli.positive, default=1, metavar="K", help="rollouts of each task (default: 1)")
    made.add_argument(
        "--concurrency", type=cli.positive, default=64, metavar="N", help="rollouts at once (default: 64)"
    )
    made.add_argument("--output", metavar="DIR", type=Path, help="folder of the journal (default: a new one in runs/)")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Play the tasks, and print the metrics."""
    config = dated(cli.config_of(arguments, overrides_of(arguments)))
    if not config.trainer.model:
        raise cli.UsageError("no model: give --model, or trainer.model in the file")
    config = structs.replace(config, rollout=structs.replace(config.rollout, journal=None))  # --output says where
    default = Path("runs") / f"{config.openreward_run_name}-rollout-{datetime.now():%Y%m%d-%H%M%S}"
    folder: Path = arguments.output or default
    if is_run(folder):
        raise cli.UsageError(f"{folder} holds a run already. Choose another --output")
    with playground(warm_model(config)[0]) as reachable:
        make_folder(folder, fresh=arguments.output is None)
        plan = RolloutPlan(
            config=reachable,
            given=config,
            tasks=_tasks(reachable, folder, arguments.task_data, arguments.max_tasks),
            samples=arguments.samples,
            concurrency=arguments.concurrency,
            folder=folder,
        )
        cli.console().print(f"rollouts {folder}", style="bold", soft_wrap=True)
        played = _against(arguments.engine, plan) if arguments.engine else _in_process(plan)
    return _conclude(config, played, folder)


def make_folder(folder: Path, *, fresh: bool) -> None:
    """Make the folder of the rollouts. A `fresh` one must be new.

    Raises:
        UsageError: a fresh one exists already, or a file has its name.
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=not fresh)
    except FileExistsError:
        raise cli.UsageError(f"{folder} exists already. Choose another --output") from None
    except OSError as exc:
        raise ConfigError(f"{folder}: {exc.strerror}") from exc


def _tasks(config: RunConfig, folder: Path, given: Path | None, most: int | None) -> tuple[Task, ...]:
    from orl_rollout.tasks.file import read_tasks
    from orl_rollout.tasks.prepare import prepare

    if given is None:
        interrupt.run(prepare(config, folder / "tasks.jsonl", max_tasks=most, seed=config.trainer.seed))
    tasks = tuple(islice(read_tasks(given or folder / "tasks.jsonl", config), most))
    if not tasks:
        raise ConfigError(f"{given}: holds no task. Write one with orl prepare")
    return tasks


def _against(url: str, plan: RolloutPlan) -> list[Played]:
    """Play against a running engine."""
    from orl_rollout.sglang.client import SglangEngine

    async def played() -> list[Played]:
        async with SglangEngine(url, context_tokens=plan.config.rollout.context_tokens) as engine:
            return await play(plan, engine)

    return interrupt.run(played())


def _in_process(plan: RolloutPlan) -> list[Played]:
    """Play against a model on this thread, the rollouts' loop on another."""
    found = next(iter(entry_points(group="orl.engines")), None)
    if found is None:
        raise cli.UsageError("no engine in this environment. Give --engine, or run pip install 'orl-launcher[trl]'")
    local = cast("LocalEngine", found.load())
    return local(str(plan.config.trainer.model), lambda engine: play(plan, engine))


async def play(plan: RolloutPlan, engine: Engine) -> list[Played]:
    """Play the plan. Return one Played for each rollout, in the order in which they ended.

    Raises:
        OrlError: the run cannot go on (the breaker, a full disk).
    """
    from orl_rollout.run_folder.config_file import write_config
    from orl_rollout.runtime.stack import open_runtime
    from rich.progress import Progress

    console = cli.console()
    async with open_runtime(plan.config, str(plan.config.trainer.model), plan.folder, plan.samples) as runtime:
        write_config(plan.folder, plan.given)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            return await play_all(plan, runtime, engine, progress)


async def play_all(plan: RolloutPlan, runtime: Runtime, engine: Engine, progress: Progress) -> list[Played]:
    """Play the plan with `runtime`, as `play` does, and count the rollouts in `progress`."""
    from orl_rollout.runtime.stack import run_all

    sampling = {"temperature": plan.config.eval.temperature, "top_p": plan.config.eval.top_p}
    bar = progress.add_task("rollouts", total=len(plan.tasks) * plan.samples)
    played: list[Played] = []

    async def one(key: str, task: Task) -> None:
        rollout = runtime.play(task, key=key, engine=engine, sampling=sampling, evaluation=True)
        played.append(played_of(await rollout))
        progress.advance(bar)

    work = ((f"{task.key}/{sample}", task) for task in plan.tasks for sample in range(plan.samples))
    left = takewhile(lambda _: not interrupt.received(), work)
    await run_all(starmap(one, left), min(plan.concurrency, len(plan.tasks) * plan.samples))
    return played


def _conclude(config: RunConfig, played: Sequence[Played], folder: Path) -> int:
    """Print and write the metrics. Return the exit code, which is a failure if every rollout ended in ERROR."""
    metrics = metrics_of(one.stats for one in played)
    successes: dict[str, dict[str, list[bool]]] = {}
    for one in played:
        if not one.error:
            tasks = successes.setdefault(one.stats.environment, {})
            tasks.setdefault(one.task_key, []).append(one.stats.success)
    passes = {name: mean_pass_at_k(of_tasks) for name, of_tasks in successes.items()}
    rungs = sorted({k for rates in passes.values() for k in rates})
    table = plain_table("environment", *(f"pass@{k}" for k in rungs))
    for name, rates in passes.items():
        table.add_row(name, *(f"{rates[k]:.3f}" if k in rates else "" for k in rungs))
    console = cli.console()
    console.print(metrics_table(metrics))
    console.print(table)
    pass_metrics = {f"{name}/pass@{k}": rate for name, rates in passes.items() for k, rate in rates.items()}
    append(folder / "metrics.jsonl", "eval", 0, {**metrics, **pass_metrics}, seconds=0.0)
    errors = [one.error for one in played if one.error]
    if errors:
        latest = visible(Scrubber.of(config).scrub(" ".join(errors[-1].split())))
        console.print(
            f"{len(errors)} ended in ERROR and are left out of the metrics; the latest: {latest}", soft_wrap=True
        )
    console.print(f"{len(played)} episodes; to see them: orl show {folder}", soft_wrap=True)
    return cli.EXIT_FAILED if len(errors) == len(played) else 0
