"""`orl export`: write the episodes of a run in chat format, for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from orl_core.errors import OrlError, boundary
from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.record import journal_of

from orl_launcher import cli
from orl_launcher.export.conversations import rows_of
from orl_launcher.export.files import FORMATS, check_format, write

DESCRIPTION = """\
Write the episodes of a run or a journal in chat format: messages with tool calls, tools, reward, success, step.
Held-out episodes have `evaluation` true. An agent's episode that branches becomes one row for each conversation.
The formats are JSON lines, one Parquet file, or a folder (hf); datasets.load_dataset reads all of them.
"""
EXAMPLES = """\
  orl export runs/local --output episodes.jsonl
  orl export runs/local --format parquet --ids --output episodes.parquet
  orl export runs/local --format hf --output episodes        load_dataset("episodes"): train and test
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl export`."""
    options.add_argument("path", metavar="PATH", type=Path, help="a run's folder or a journal's file")
    options.add_argument("--format", choices=FORMATS, default="jsonl", help="format of the output (default: jsonl)")
    options.add_argument("--output", metavar="OUT", type=Path, required=True, help="new file, or new folder for hf")
    options.add_argument("--ids", action="store_true", help="add token ids, loss masks and logprobs")


def run(arguments: argparse.Namespace) -> int:
    """Write the rows, and print their number."""
    check_format(arguments.format)
    journal, output = journal_of(arguments.path), arguments.output
    rows = (row for entry in read_journal(journal) for row in rows_of(entry, ids=arguments.ids))
    if output.exists():
        raise cli.UsageError(f"{output} exists already. Choose another --output")
    with boundary(OrlError, f"writing {output}"):
        count = write(rows, output, arguments.format, arguments.path.resolve().name)
    if not count:
        raise OrlError(f"{arguments.path}: its journal holds no episode. Nothing is written")
    cli.console().print(f"{count} conversations: {output}")
    return 0
