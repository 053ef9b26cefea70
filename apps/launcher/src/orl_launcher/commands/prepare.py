"""`orl prepare`: write the tasks of the configured environments to tasks.jsonl."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orl_core.config import RunConfig
from rich.text import Text

from orl_launcher import cli
from orl_launcher.configuration import resolve
from orl_launcher.playground import playground
from orl_launcher.reports import PrepareReport, add_json, for_people, print_json
from orl_launcher.view.tables import plain_table

if TYPE_CHECKING:
    from orl_rollout.tasks.prepare import PreparedTasks

DESCRIPTION = """\
List the tasks of the configured environments, mix them by weight, shuffle them and write JSON lines.
The same seed gives the same bytes. If the command fails, the old file stays as it was.
"""
EXAMPLES = """\
  orl prepare --config configs/local.yaml --output tasks.jsonl
  orl prepare --config configs/multi-env.yaml --output tasks.jsonl --max-tasks 1000 --seed 7
  orl prepare --config configs/local.yaml --output held-out.jsonl --split eval_splits
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl prepare`."""
    cli.add_config(options, default=cli.DEFAULT_CONFIG)
    cli.add_split(options)
    options.add_argument(
        "--output", default="tasks.jsonl", metavar="FILE", type=Path, help="file to write (default: tasks.jsonl)"
    )
    options.add_argument("--max-tasks", type=cli.positive, metavar="N", help="write at most N tasks, divided by weight")
    options.add_argument("--seed", type=int, default=0, metavar="S", help="seed of choice and order (default: 0)")
    add_json(options)


def run(arguments: argparse.Namespace) -> int:
    """Write the file, and print its counts."""
    with for_people(arguments):
        prepared = _prepare(arguments)
    if arguments.json:
        report = PrepareReport(
            output=str(arguments.output),
            total=prepared.total,
            environments=prepared.counts,
            duplicates=prepared.duplicates,
        )
        print_json(report)
    return 0


def _prepare(arguments: argparse.Namespace) -> PreparedTasks:
    from orl_rollout.edge import interrupt
    from orl_rollout.tasks.prepare import TRAINING, prepare

    resolved, *_ = resolve(arguments, model="unread")
    if arguments.output.exists() and arguments.output.samefile(arguments.config):
        raise cli.UsageError(f"--output {arguments.output} is the configuration itself. Choose another file")
    with playground(resolved) as config:
        splits = arguments.splits or (TRAINING,)
        prepared = interrupt.run(
            prepare(config, arguments.output, max_tasks=arguments.max_tasks, seed=arguments.seed, splits=splits)
        )
    print_prepared(config, prepared, arguments.output, splits)
    return prepared


def print_prepared(config: RunConfig, prepared: PreparedTasks, output: Path, splits: Sequence[str]) -> None:
    """Print the number of tasks of each environment."""
    from orl_rollout.tasks.prepare import splits_of

    table = plain_table("environment", "splits", "tasks")
    for name, count in prepared.counts.items():
        table.add_row(Text(name), Text(", ".join(splits_of(config.environments[name], splits))), str(count))
    console = cli.console()
    console.print(table)
    left_out = f", {prepared.duplicates} duplicates left out" if prepared.duplicates else ""
    console.print(f"{prepared.total} tasks in {output}{left_out}")
