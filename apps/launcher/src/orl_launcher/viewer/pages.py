"""The pages of the viewer: what each shows, made from the files of a run and the index of its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError
from orl_rollout.episodes.journal import Entry
from orl_rollout.run_folder.record import Record, has_journal

from orl_launcher.view.episode import EpisodeRows, episode_rows
from orl_launcher.view.html import page
from orl_launcher.view.pieces import Decoder, load_decoder
from orl_launcher.view.report import values_of
from orl_launcher.viewer.catalog import Catalog, last_change, state_of
from orl_launcher.viewer.comparison import MOST, compare
from orl_launcher.viewer.index import Index
from orl_launcher.viewer.indexes import Indexes
from orl_launcher.viewer.queries import (
    ORDERS,
    EpisodeLine,
    Filter,
    attempts_of,
    filter_of,
    group_of,
    last_number,
    line_of,
    page_of,
)

WHOLE = 8  # episodes of a group that are shown whole


class NotFoundError(OrlError):
    """There is no such page."""


class Address(Struct, frozen=True):
    """Addresses of pages. `root` ends with a slash and holds the token."""

    root: str

    def run(self, name: str) -> str:
        """Return the page of a run."""
        return f"{self.root}run/{quote(name, safe='')}"

    def episodes(self, name: str, chosen: Filter | None = None, page: int = 0) -> str:
        """Return a page of the episodes that match."""
        query = {key: value for key, value in structs.asdict(chosen).items() if value} if chosen else {}
        return f"{self.run(name)}/episodes?{urlencode({**query, 'page': page})}"

    def episode(self, name: str, number: int, view: str = "episode") -> str:
        """Return the page of an episode, of its group, or of its task over training."""
        return f"{self.run(name)}/{view}/{number}"


class Pages:
    """Pages as HTML texts. All methods block, so the server calls them on threads.

    Raises:
        NotFoundError: there is no such run or episode.
        OrlError: files of the run cannot be read.
    """

    def __init__(self, catalog: Catalog, indexes: Indexes, address: Address) -> None:
        self._catalog, self._indexes, self._address = catalog, indexes, address
        self._decoders: dict[Path, Decoder | None] = {}

    def runs(self) -> str:
        """Return the list of runs."""
        return self._page("runs", "Runs", lines=self._catalog.lines(), most=MOST)

    def comparison(self, names: Sequence[str]) -> str:
        """Return several runs side by side.

        Raises:
            ConfigError: they are fewer than two or more than MOST.
        """
        names = list(dict.fromkeys(names))
        if not 2 <= len(names) <= MOST:
            raise ConfigError(f"{len(names)} runs are chosen. Choose 2 to {MOST}")
        records = [self._record(name) for name in names]
        return self._page("compare", "Comparison", names=names, made=compare(records))

    def run(self, name: str) -> str:
        """Return the page of a run: figures, curves, settings."""
        record = self._record(name)
        state = state_of(record, last_change(record))
        trainer: dict[str, Any] = record.config.get("trainer") or {}
        place = (record.steps[-1] if record.steps else 0, trainer.get("num_rollout"))
        values = {**values_of(record), "name": name, "state": state, "place": place if trainer else None}
        return self._page("run", name, run=name, journal=has_journal(record.journal), **values)

    def episodes(self, name: str, query: Mapping[str, str]) -> str:
        """Return a page of a run's episodes.

        Raises:
            ConfigError: the filter is wrong.
        """
        chosen = filter_of(query)
        number = query.get("page", "")
        index = self._index(self._record(name))
        with index.opened() as database:
            found = page_of(database, chosen, int(number) if number.isdecimal() and len(number) < 10 else 0)
        done, total = index.progress()
        return self._page(
            "episode_list",
            f"Episodes of {name}",
            run=name,
            chosen=structs.asdict(chosen),
            choice=chosen,
            found=found,
            orders=tuple(ORDERS),
            indexed=min(1.0, done / total) if total else 1.0,
        )

    def episode(self, name: str, number: int) -> str:
        """Return one episode."""
        record = self._record(name)
        index = self._index(record)
        line, group = self._line(index, number)
        rows = self._rows(record, index, [line])
        with index.opened() as database:
            last = last_number(database)
        title = f"Episode {number} of {name}"
        return self._page("one_episode", title, run=name, line=line, last=last, rows=rows[0], group=len(group))

    def group(self, name: str, number: int) -> str:
        """Return the rollouts of one task in one step side by side."""
        record = self._record(name)
        index = self._index(record)
        _, lines = self._line(index, number)
        rows = self._rows(record, index, lines[:WHOLE])
        return self._page("group", f"Group of {name}", run=name, number=number, lines=lines, episodes=rows)

    def task(self, name: str, number: int) -> str:
        """Return the first and the last rollout of one task, and a list of those between."""
        record = self._record(name)
        index = self._index(record)
        line, _ = self._line(index, number)
        with index.opened() as database:
            lines = [one for one in attempts_of(database, line) if one.held_out == line.held_out]
        ends = [*lines[:1], *lines[1:][-1:]]
        rows = self._rows(record, index, ends)
        return self._page("task", f"A task of {name}", run=name, number=number, lines=lines, episodes=rows)

    def problem(self, text: str) -> str:
        """Return a page that says what is wrong."""
        return self._page("problem", "Not possible", text=text)

    def _page(self, template: str, title: str, **values: object) -> str:
        return page(template, title=f"{title} · orl view", address=self._address, **values)

    def _record(self, name: str) -> Record:
        path = self._catalog.path(name)
        if path is None:
            raise NotFoundError(f"there is no run {name}")
        return self._catalog.record(path)

    def _index(self, record: Record) -> Index:
        journal = record.journal if record.folder.is_dir() else record.folder
        if not has_journal(journal):
            raise NotFoundError(f"{record.folder.name} has no journal yet")
        return self._indexes.of(journal)

    def _line(self, index: Index, number: int) -> tuple[EpisodeLine, tuple[EpisodeLine, ...]]:
        with index.opened() as database:
            line = line_of(database, number)
            if line is None:
                raise NotFoundError(f"there is no episode {number}")
            return line, group_of(database, line)

    def _rows(self, record: Record, index: Index, lines: Sequence[EpisodeLine]) -> list[EpisodeRows]:
        decoder = self._decoder(record)
        entries = ((line, index.entry(line.number)) for line in lines)
        return [episode_rows(_title(line, entry), entry, decoder) for line, entry in entries if entry is not None]

    def _decoder(self, record: Record) -> Decoder | None:
        folder = record.folder if record.folder.is_dir() else record.folder.parent
        if self._decoders.get(folder) is None:
            journal = record.journal if record.folder.is_dir() else folder
            self._decoders[folder] = load_decoder(journal) or load_decoder(folder)
        return self._decoders[folder]


def _title(line: EpisodeLine, entry: Entry) -> str:
    step = "" if entry.step is None else f", step {entry.step}"
    return f"Episode {line.number}{step}{', held out' if line.held_out else ''}"
