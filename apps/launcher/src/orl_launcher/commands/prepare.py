"""`orl prepare`: write the tasks of the configured environments to tasks.jsonl, by `orl_rollout.tasks.prepare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from orl_launcher import cli
from orl_launcher.playground import playground

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.tasks.prepare import PreparedTasks

EXAMPLES = """\
  orl prepare --config configs/local.yaml --output tasks.jsonl
  orl prepare --config configs/multi-env.yaml --output tasks.jsonl --max-tasks 1000 --seed 7
"""


def parser() -> cli.Parser:
    """The options of `orl prepare`."""
    description = (
        "List the tasks of the configured environments, mix them by weight, shuffle, write one JSON object a line.\n"
        "The same seed gives the same bytes. The file is replaced in one step, or not at all."
    )
    made = cli.Parser("prepare", description=description, examples=EXAMPLES)
    cli.add_config(made)
    made.add_argument("--output", required=True, metavar="FILE", type=Path, help="the file to write, tasks.jsonl")
    made.add_argument("--max-tasks", type=cli.positive, metavar="N", help="at most so many, shared out by weight")
    made.add_argument("--seed", type=int, default=0, metavar="S", help="which tasks, and their order (default: 0)")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Write the file, print what it holds."""
    from orl_rollout.signals import interrupt
    from orl_rollout.tasks.prepare import prepare

    given = cli.config_of(arguments)
    if arguments.output.exists() and arguments.output.samefile(arguments.config):
        raise cli.UsageError(f"--output {arguments.output} is the configuration itself, which would be lost")
    with playground(given) as config:
        prepared = interrupt.run(prepare(config, arguments.output, max_tasks=arguments.max_tasks, seed=arguments.seed))
    print_prepared(config, prepared, arguments.output)
    return 0


def print_prepared(config: RunConfig, prepared: PreparedTasks, output: Path) -> None:
    """Print a table of counts."""
    from rich.text import Text

    from orl_launcher.view.tables import plain_table

    table = plain_table("environment", "splits", "tasks")
    for name, count in prepared.counts.items():
        table.add_row(Text(name), Text(", ".join(config.environments[name].splits)), str(count))
    console = cli.console()
    console.print(table)
    left_out = f", {prepared.duplicates} duplicates left out" if prepared.duplicates else ""
    console.print(f"{prepared.total} tasks in {output}{left_out}", soft_wrap=True)
