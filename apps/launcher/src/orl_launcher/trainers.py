"""Trainers' adapters and the runs that they are handed. It knows no trainer.

Adapters are found through the entry-point group `orl.trainers`. `orl train` and `orl doctor` plan a run in the same
way: nothing is written, and no server is started.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.metadata import EntryPoint, entry_points, metadata
from pathlib import Path
from typing import cast

from msgspec import Struct, structs
from orl_core.config import RunConfig, TrainerConfig
from orl_core.text import did_you_mean, visible
from orl_rollout.run_folder.contract import Plan, Run, Trainer

from orl_launcher import cli, invocation
from orl_launcher.playground import is_made, made_model, reachable

GROUP = "orl.trainers"
RUNS = Path("runs")
WOULD_NOT_START = "it would not start on this machine"  # opens every problem of a plan


def new_run(name: str | None, otherwise: str, *, planned: bool = False) -> Path:
    """Return the folder of a new run: `name` in runs/, else `otherwise` and the time. A `planned` run may exist."""
    name = f"{otherwise}-{datetime.now():%Y%m%d-%H%M%S}" if name is None else name
    if name in ("", ".", "..") or Path(name).name != name:
        raise cli.UsageError(f"--name {name!r} is not a folder name without a path. Choose another --name")
    if (RUNS / name).exists() and not planned:
        raise cli.UsageError(f"{RUNS / name} exists already. Choose another --name")
    return RUNS / name


@cache
def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the adapters in this environment, by the names of their trainers."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP))}


def find_trainer(name: str) -> Trainer:
    """Return the adapter of a trainer."""
    return cast("Trainer", installed()[known(name)].load())


def known(name: str) -> str:
    """Return the name of a trainer whose adapter is installed, for argparse too."""
    here = installed()
    if name in here:
        return name
    if name in (metadata("orl-launcher").get_all("Provides-Extra") or ()):
        raise cli.UsageError(f"orl-{name}: not in this environment. Run {cli.to_install(name)}")
    near = did_you_mean(name, here) or f": here are {', '.join(here) or 'none'}"
    raise cli.UsageError(f"{name}: no such trainer in this environment{near}")


def sections() -> dict[str, type[Struct]]:
    """Return the sections of `trainer` that the adapters in this environment have."""
    return {section: kind for name in installed() for section, kind in find_trainer(name).sections.items()}


def unread(config: RunConfig) -> Iterator[str]:
    """Yield a note on each section of `trainer`, and each trainer of `flags`, that no trainer here reads."""
    named = {f"trainer.{name}": name for name in config.trainer.sections}
    named |= {f"trainer.flags.{name}": name for name, flags in config.trainer.flags.items() if isinstance(flags, dict)}
    readable = {*installed(), *sections()} if named else set[str]()
    for path, name in named.items():
        if name not in readable:
            yield f"{path} is not used: no trainer in this environment reads it{did_you_mean(name, sorted(readable))}"


def lacking_descriptors(config: RunConfig, trainer: TrainerConfig) -> Iterator[str]:
    """Yield a note if this process may not open the sockets of a step's rollouts. `trainer` has its defaults."""
    from orl_rollout.edge.descriptors import SOCKETS, raise_limit

    step = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    rollouts = min(step, sum(one.max_concurrency or step for one in config.environments.values()))
    needed, most = round(SOCKETS * rollouts), raise_limit()
    if needed > most:
        yield f"{rollouts} rollouts open about {needed} sockets, of {most} at most: raise `ulimit -n`, or some wait"


def plan_run(config: RunConfig, folder: Path, extra: tuple[str, ...] = (), python: str | None = None) -> Plan:
    """Let the adapter plan a run in `folder`. A model of the playground is planned with once it is made."""
    adapter = find_trainer(str(config.trainer.backend))
    plan = adapter.plan(
        Run(
            config=reachable(config, model=made_model(config)[0] if is_made(config) else None),
            folder=folder,
            task_data=task_data_of(config, folder),
            eval_data=folder / "eval_tasks.jsonl" if holds_out(config) else None,
            extra=extra,
            python=python,
        )
    )
    lacking = lacking_descriptors(config, config.trainer.with_defaults(adapter.defaults))
    return structs.replace(plan, notes=(*plan.notes, *unread(config), *lacking))


def print_plan(plan: Plan) -> int:
    """Print a plan on stdout, to read or to paste into a shell. Return the exit code, which tells of problems."""
    problems = (f"{WOULD_NOT_START}: {problem}" for problem in plan.problems)
    for line in (*plan.command.split("\n"), *(f"# {remark}" for remark in (*problems, *plan.notes))):
        print(visible(line))
    return cli.EXIT_FAILED if plan.problems else 0


def task_data_of(config: RunConfig, folder: Path) -> Path:
    """Return the file of the tasks to train on: the given one, else one in `folder`, which need not exist yet."""
    return Path(config.trainer.task_data or folder / "tasks.jsonl")


def missing_tasks(config: RunConfig) -> str:
    """Return what is wrong with the given file of tasks, or ""."""
    named = config.trainer.task_data
    missing = named and not Path(named).is_file()
    return f"trainer.task_data {named}: no such file. Write it with {invocation()} prepare" if missing else ""


def holds_out(config: RunConfig) -> bool:
    """Tell whether the run evaluates held-out tasks."""
    return any(environment.eval_splits for environment in config.environments.values())
