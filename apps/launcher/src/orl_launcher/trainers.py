"""Trainers' adapters, their options, and the runs that they are handed. It knows no trainer.

Adapters are found through the entry-point group `orl.trainers`. `orl train` and `orl doctor` plan a run in the same
way: nothing is written, and no server is started.

Command-line options are made of Structs: for `trainer`, for the sections of a trainer, and two budgets. They are
described where the fields are defined, and the configuration checks the values. Trainers' own flags are not mirrored
here, they follow `--`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points, metadata
from itertools import groupby
from pathlib import Path
from typing import cast

from msgspec import Struct, inspect, structs
from orl_core.config import RolloutConfig, RunConfig, TrainerConfig
from orl_core.config.fields import description_of, members_of, option_of
from orl_core.text import did_you_mean, visible
from orl_rollout.run_folder.contract import Plan, Run, Trainer

from orl_launcher import cli, invocation
from orl_launcher.playground import is_made, made_model, reachable

GROUP = "orl.trainers"
RUNS = Path("runs")
WOULD_NOT_START = "it would not start on this machine"  # opens every problem of a plan
BUDGETS = {"max-response-len": "turn_tokens", "max-context-len": "context_tokens"}  # the cookbook's names
PLAYED = ("model", *BUDGETS)  # what a command without a trainer takes, too
NO_OPTIONS = ("backend", "flags", "sections")  # the positional argument, what follows `--`, and the trainers' own


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


class Option(Struct, frozen=True):
    """The option `--name` for the value at `path` of the configuration, of the type `kind`."""

    name: str
    path: str
    kind: object


def add_own(parser: cli.Parser, *, converts: bool = False) -> None:
    """Add the options of the trainer that the first word names. What follows `--` is left to it, or to its tool."""
    parser.elsewhere = "; the trainer comes first, and options that only it knows come after `--`"
    here, chosen = installed(), [*parser.words, ""][0]
    own = options_of(chosen, converts=converts) if chosen in here else ()
    for title, options in groupby(own, lambda option: option.path.rpartition(".")[0]):
        group = parser.add_argument_group(f"options of {chosen} (`{title}` in the file)")
        for option in options:
            _add(group, option)
    parser.epilog = "\n".join([f"{parser.epilog}", *(f"  {parser.prog} {name} --help" for name in here)])


def add_shared(parser: argparse._ActionsContainer, names: Sequence[str] = ()) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options that every trainer obeys, or those of them with the `names`."""
    kinds = {field.name: field.type for field in structs.fields(RolloutConfig)}
    budgets = [Option(option, f"rollout.{name}", kinds[name]) for option, name in BUDGETS.items()]
    shared = {option.name: option for option in (*budgets, *_of_struct(TrainerConfig, "trainer"))}
    for name in names or shared:
        _add(parser, shared[name])


def options_of(trainer: str, *, converts: bool = False) -> Iterator[Option]:
    """Yield the options for the sections of a trainer that is installed; of a conversion alone if it `converts`."""
    adapter = find_trainer(trainer)
    for section, kind in adapter.sections.items():
        for option in _of_struct(kind, f"trainer.{section}"):
            if not converts or option.path.removeprefix("trainer.") in adapter.conversion_options:
                yield option


def _of_struct(kind: type[Struct], path: str) -> Iterator[Option]:
    for field in structs.fields(kind):
        if field.name not in NO_OPTIONS:
            name = option_of(field.type) or field.encode_name
            spelled = name.format(section=path.rpartition(".")[2]).replace("_", "-")
            yield Option(spelled, f"{path}.{field.encode_name}", field.type)


def _add(parser: argparse._ActionsContainer, option: Option) -> None:  # pyright: ignore[reportPrivateUsage]
    members = [member.type if isinstance(member, inspect.Metadata) else member for member in members_of(option.kind)]
    choices = [word for member in members if isinstance(member, inspect.LiteralType) for word in member.values]
    add = partial(
        parser.add_argument,
        f"--{option.name}",
        dest=option.path,
        default=argparse.SUPPRESS,
        help=description_of(option.kind),
    )
    if any(isinstance(member, inspect.BoolType) for member in members):
        add(action="store_const", const=True)
    elif choices:
        add(choices=choices)
    elif any(isinstance(member, inspect.StrType) for member in members):
        add(metavar="TEXT")
    else:
        add(metavar="N", type=_number)


def _number(text: str) -> float | str | None:
    """Return the number that `text` spells, or None for null; any other text, which the configuration refuses."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None if text == "null" else text
