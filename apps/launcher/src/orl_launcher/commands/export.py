"""`orl export`: write the episodes of a run in chat format, for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import msgspec
from orl_core.errors import OrlError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.record import journal_of

from orl_launcher import cli
from orl_launcher.conversations import ChatRow, rows_of

DESCRIPTION = """\
Write the episodes of a run or a journal in chat format: messages with tool calls, tools, reward, success, step.
Held-out episodes have `evaluation` true. An agent's episode that branches becomes one row for each conversation.
The file is JSON lines: datasets.load_dataset("json", data_files="episodes.jsonl") reads it.
"""
EXAMPLES = """\
  orl export runs/local --output episodes.jsonl
  orl export runs/local --ids --output episodes.jsonl        with token ids, loss masks and logprobs
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl export`."""
    options.add_argument("path", metavar="PATH", type=Path, help="a run's folder or a journal's file")
    options.add_argument("--output", metavar="OUT", type=Path, required=True, help="new file")
    options.add_argument("--ids", action="store_true", help="add token ids, loss masks and logprobs")


def run(arguments: argparse.Namespace) -> int:
    """Write the rows, and print their number."""
    journal, output = journal_of(arguments.path), arguments.output
    rows = (row for entry in read_journal(journal) for row in rows_of(entry, ids=arguments.ids))
    if output.exists():
        raise cli.UsageError(f"{output} exists already. Choose another --output")
    with boundary(OrlError, f"writing {output}"):
        count = write(rows, output)
    if not count:
        raise OrlError(f"{arguments.path}: its journal holds no episode. Nothing is written")
    cli.console().print(f"{count} conversations: {output}")
    return 0


def write(rows: Iterable[ChatRow], output: Path) -> int:
    """Write `rows` to `output`, a new file, as they come. Return their number; none writes no file.

    The file gets its name when it is whole. A partial one is removed: on an error, on a signal, and before the first
    row, if a killed process left one.
    """
    part = output.with_name(f".{output.name}.part")
    count = 0
    try:
        with part.open("wb") as file:
            for row in rows:
                interrupt.check()
                file.write(msgspec.json.encode(row) + b"\n")
                count += 1
        if count:
            part.rename(output)
    finally:
        part.unlink(missing_ok=True)
    return count
