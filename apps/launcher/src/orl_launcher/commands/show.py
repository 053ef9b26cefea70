"""`orl show`: a run's folder or a journal, in the terminal or as one self-contained page. It writes nothing else.

A journal is read once, from the beginning to the end, and never held as a whole: it may be larger than memory. Its
files may also be read with `zstdcat`: each holds lines of JSON.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from orl_core.errors import ConfigError

from orl_launcher import cli

if TYPE_CHECKING:
    from orl_rollout.journal.journal import Entry

    from orl_launcher.view.pieces import Decoder

ROWS = 20  # episodes that the terminal lists
ARTICLES = 50  # episodes that a page shows whole
KEPT_BYTES = 64 << 20  # of the records that are held at once: a hundred ordinary ones

EXAMPLES = """\
  orl show runs/local                        curves, the last episodes
  orl show runs/local --episode 12           one episode: text, what trains in colour, calls, rewards, times
  orl show runs/local --failed               the last episodes that were lost or ended in an error
  orl show runs/local --failed --html failed.html
"""


def parser() -> cli.Parser:
    """The options of `orl show`."""
    made = cli.Parser("show", description="Look at a run or at a journal of episodes.", examples=EXAMPLES)
    made.add_argument("path", metavar="PATH", type=Path, help="a run's folder, or a file of a journal")
    made.add_argument("--html", metavar="OUT", type=Path, help="write a self-contained page instead")
    made.add_argument("--episode", metavar="N", type=int, help="one episode by its number; -1 is the last")
    made.add_argument("--failed", action="store_true", help="only episodes that did not succeed")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Show, or write the page."""
    from orl_rollout.run_folder import record

    from orl_launcher.view.episode import episode_rows
    from orl_launcher.view.pieces import load_decoder
    from orl_launcher.view.tables import episode_view

    path: Path = arguments.path
    journal = record.read_record(path).journal if path.is_dir() else path
    if not record.has_journal(journal):
        raise ConfigError(f"{journal}: no such journal")
    decoder = load_decoder(path if path.is_dir() else path.parent)
    if arguments.html:
        chosen = _chosen(journal, arguments, ARTICLES)
        _write_page(arguments.html, path, chosen, decoder)
        cli.console().print(f"{len(chosen)} episodes: {arguments.html}", soft_wrap=True)
    elif arguments.episode is not None:
        ((place, entry),) = _chosen(journal, arguments, 1)
        cli.console().print(episode_view(episode_rows(f"episode {place}", entry, decoder)))
    else:
        _show_overview(path, _chosen(journal, arguments, ROWS))
    return 0


def _numbered(path: Path, *, failed: bool) -> Iterator[tuple[int, Entry]]:
    """Episodes with their place in the journal, from 1."""
    return ((place, entry) for place, entry, _ in _sized(path, failed=failed))


def _sized(path: Path, *, failed: bool) -> Iterator[tuple[int, Entry, int]]:
    """Yield episodes with their place in the journal, from 1, and the bytes of their records."""
    from orl_rollout.journal.journal import read_sized

    for place, (entry, size) in enumerate(read_sized(path), start=1):
        if not (failed and entry.success):
            yield place, entry, size


def _chosen(path: Path, arguments: argparse.Namespace, most: int) -> list[tuple[int, Entry]]:
    """Return the episode that was asked for, or the last `most`, as far as KEPT_BYTES hold them.

    Raises:
        UsageError: there is no such episode.
    """
    wanted: int | None = arguments.episode
    if wanted is None:
        return _last(_sized(path, failed=arguments.failed), most)
    numbered = _numbered(path, failed=arguments.failed)
    if wanted < 0:  # counted first: the last ones may be more than memory holds
        before = sum(1 for _ in numbered) + wanted
        numbered = _numbered(path, failed=arguments.failed)
        found = list(islice(numbered, before, before + 1)) if before >= 0 else []
    else:
        found = list(islice((one for one in numbered if one[0] == wanted), 1))
    if not found:
        raise cli.UsageError(f"{path}: there is no episode {wanted}{' that failed' if arguments.failed else ''}")
    return found


def _last(sized: Iterator[tuple[int, Entry, int]], most: int) -> list[tuple[int, Entry]]:
    """Return the last `most` episodes, or fewer that hold KEPT_BYTES; one at least."""
    kept: deque[tuple[int, Entry, int]] = deque()
    held = 0
    for one in sized:
        kept.append(one)
        held += one[2]
        while len(kept) > most or (held > KEPT_BYTES and len(kept) > 1):
            held -= kept.popleft()[2]
    return [(place, entry) for place, entry, _ in kept]


def _show_overview(path: Path, chosen: list[tuple[int, Entry]]) -> None:
    from orl_rollout.run_folder.record import read_record

    from orl_launcher.view.tables import closing_table, curves_table, episodes_table

    console = cli.console()
    if path.is_dir():
        made = read_record(path)
        if made.points:
            if (told := closing_table(made)).row_count:
                console.print(told)
            console.print(curves_table(made))
    if not chosen:
        console.print("no such episodes")
        return
    console.print(episodes_table(chosen))
    console.print(f"one of them: orl show {path} --episode N", style="dim", soft_wrap=True)


def _write_page(out: Path, path: Path, chosen: list[tuple[int, Entry]], decoder: Decoder | None) -> None:
    from orl_core.errors import OrlError, boundary
    from orl_rollout.run_folder.record import read_record

    from orl_launcher.view.curves import charts_of
    from orl_launcher.view.episode import episode_rows
    from orl_launcher.view.html import page

    name = path.resolve().name
    rows = [
        episode_rows(f"Episode {place}{'' if entry.step is None else f', step {entry.step}'}", entry, decoder)
        for place, entry in chosen
    ]
    charts = charts_of(read_record(path)) if path.is_dir() else ()
    with boundary(OrlError, f"writing {out}"):
        text = page("episodes", title=f"{name} · episodes", name=name, charts=charts, episodes=rows)
        out.write_text(text, encoding="utf-8")
