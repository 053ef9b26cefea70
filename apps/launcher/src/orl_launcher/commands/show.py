"""`orl show`: show a run's folder or a journal in the terminal.

A journal may be larger than memory: it is read from beginning to end, and only what is shown is held. Its files may
also be read with `zstdcat`: each holds lines of JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from itertools import islice, starmap
from pathlib import Path

from msgspec import structs
from orl_rollout.episodes.journal import Entry, journal_files, read_journal
from orl_rollout.run_folder.metrics_log import TRAINING_METRICS, Kind
from orl_rollout.run_folder.record import Record, journal_of

from orl_launcher import cli, invocation
from orl_launcher.conversations import rows_of
from orl_launcher.reports import EpisodeReport, MetricReport, ShowReport, add_json, print_json, row_of
from orl_launcher.trainers import RUNS
from orl_launcher.view.catalog import record_of
from orl_launcher.view.episode import episode_rows, load_decoder
from orl_launcher.view.evaluations import notices_of
from orl_launcher.view.tables import episode_view, episodes_table, overview
from orl_launcher.view.wording import MAIN_METRICS

ROWS = 20  # episodes that the terminal lists

DESCRIPTION = "Show a run or a journal of episodes."
EXAMPLES = """\
  orl show                                   the latest run
  orl show runs/local                        curves and the last episodes
  orl show runs/local --episode 12           one episode: text, trained tokens in colour, calls, rewards, times
  orl show runs/local --failed               the last episodes without success
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl show`."""
    options.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        help="a run's folder or a journal's file (default: the latest run)",
    )
    options.add_argument("--episode", metavar="N", type=int, help="show one episode, by its number; -1 is the last")
    options.add_argument("--failed", action="store_true", help="show only episodes that did not succeed")
    add_json(options)


def run(arguments: argparse.Namespace) -> int:
    """Show the run."""
    path: Path = arguments.path or latest_run()
    record = record_of(path)
    journal = journal_of(path)
    whole = arguments.episode is not None
    chosen = _chosen(journal, arguments)
    if arguments.json:
        print_json(_report(path, record, chosen, whole=whole))
    elif whole:
        ((number, entry),) = chosen
        rows = episode_rows(f"episode {number}", entry, load_decoder(journal, path, journal.parent))
        cli.console().print(episode_view(rows))
    else:
        _show_overview(path, record, chosen)
    return 0


def latest_run() -> Path:
    """Return the folder in runs/ that was begun last, or whose journal was written last."""
    written = [
        (file.stat().st_mtime, folder)
        for folder in RUNS.glob("*/")
        for file in journal_files(folder) or [folder / "config.json"]
        if file.is_file()
    ]
    if not written:
        raise cli.UsageError(f"{RUNS}: no run here. Give the folder of a run")
    return max(written)[1]


def _chosen(path: Path, arguments: argparse.Namespace) -> list[tuple[int, Entry]]:
    """Return the episode that was asked for, or the last ROWS."""
    wanted: int | None = arguments.episode
    numbered = enumerate(read_journal(path), start=1)
    matching = (one for one in numbered if not (arguments.failed and one[1].success))
    if wanted is None:
        return [*deque(matching, ROWS)]
    if wanted < 0:
        last = deque(matching, min(-wanted, sys.maxsize))
        chosen = [*last][:1] if len(last) == -wanted else []
    else:
        chosen = [*islice((one for one in matching if one[0] == wanted), 1)]
    if not chosen:
        kind = " that failed" if arguments.failed else ""
        raise cli.UsageError(f"{path}: no episode {wanted}{kind}. List them with {invocation()} show")
    return chosen


def _report(path: Path, record: Record, chosen: list[tuple[int, Entry]], *, whole: bool) -> ShowReport:
    """Return what is shown; of `whole` episodes the messages too."""
    names = dict.fromkeys((*dict(MAIN_METRICS), *TRAINING_METRICS, "rollouts", "judged"))
    kinds: tuple[Kind, ...] = ("train", "eval")
    curves = [
        MetricReport(name=name, kind=kind, steps=list(steps), values=list(values))
        for name in names
        for kind in kinds
        for steps, values in (record.curve(name, kind),)
        if steps
    ]
    episodes = [
        EpisodeReport(
            **structs.asdict(row_of(number, entry)),
            rollout_id=entry.key,
            error=entry.trajectory.error,
            conversations=list(rows_of(entry, ids=True)) if whole else None,
        )
        for number, entry in chosen
    ]
    return ShowReport(
        path=str(path),
        finished=record.finished if record.config else None,
        environments=list(record.environments),
        notices=list(notices_of(record)),
        curves=curves,
        episodes=episodes,
    )


def _show_overview(path: Path, record: Record, chosen: list[tuple[int, Entry]]) -> None:
    console = cli.console()
    console.print(f"{'run' if path.is_dir() else 'journal'} {path}", style="bold")
    for notice in notices_of(record):
        console.print(notice, style="yellow")
    for recovery in record.recoveries:
        console.print(recovery.text)
    if record.points:
        for table in overview(record):
            console.print(table)
    if not chosen:
        console.print("no episode to show")
        return
    console.print(episodes_table(starmap(row_of, chosen)))
    console.print(f"to show one: {invocation()} show {path} --episode N", style="dim")
