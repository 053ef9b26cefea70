"""`orl prepare`: write the tasks of the configured environments to tasks.jsonl."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from orl_launcher import cli
from orl_launcher.playground import playground
from orl_launcher.view.tables import plain_table

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.tasks.prepare import PreparedTasks

EXAMPLES = """\
  orl prepare --config configs/local.yaml --output tasks.jsonl
  orl prepare --config configs/multi-env.yaml --output tasks.jsonl --max-tasks 1000 --seed 7
"""


def parser() -> cli.Parser:
    """Return the options of `orl prepare`."""
    description = (
        "List the tasks of the configured environments, mix them by weight, shuffle them and write JSON lines.\n"
        "The same seed gives the same bytes. If the command fails, the old file stays as it was."
    )
    made = cli.Parser("prepare", description=description, examples=EXAMPLES)
    cli.add_config(made)
    made.add_argument("--output", required=True, metavar="FILE", type=Path, help="the file to write, tasks.jsonl")
    made.add_argument("--max-tasks", type=cli.positive, metavar="N", help="write at most N tasks, divided by weight")
    made.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed of the choice and the order of tasks (default: 0)"
    )
    return made


def run(arguments: argparse.Namespace) -> int:
    """Write the file, and print its counts."""
    from orl_rollout.signals import interrupt
    from orl_rollout.tasks.prepare import prepare

    given = cli.config_of(arguments)
    if arguments.output.exists() and arguments.output.samefile(arguments.config):
        raise cli.UsageError(
            f"--output {arguments.output} is the configuration itself and would overwrite it. Choose another file"
        )
    with playground(given) as config:
        prepared = interrupt.run(prepare(config, arguments.output, max_tasks=arguments.max_tasks, seed=arguments.seed))
    print_prepared(config, prepared, arguments.output)
    return 0


def print_prepared(config: RunConfig, prepared: PreparedTasks, output: Path) -> None:
    """Print the number of tasks of each environment."""
    table = plain_table("environment", "splits", "tasks")
    for name, count in prepared.counts.items():
        table.add_row(Text(name), Text(", ".join(config.environments[name].splits)), str(count))
    console = cli.console()
    console.print(table)
    left_out = f", {prepared.duplicates} duplicates left out" if prepared.duplicates else ""
    console.print(f"{prepared.total} tasks in {output}{left_out}", soft_wrap=True)
