"""The pages of `orl view`: what each shows, made from the files of a run and the index of its journal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from msgspec import Struct
from orl_core import OrlError
from orl_rollout.run_folder.record import Record, has_journal

from orl_launcher.view.catalog import Catalog, last_change, state_of
from orl_launcher.view.episode import Decoder, EpisodeRows, episode_rows, load_decoder
from orl_launcher.view.index import FILTERS, ORDERS, Index, IndexRow
from orl_launcher.view.report import page, values_of

WHOLE = 8  # episodes of a group that are shown whole


class NotFoundError(OrlError):
    """There is no such page."""


class Address(Struct, frozen=True):
    """Addresses of pages. `root` ends with a slash and holds the token."""

    root: str

    def run(self, name: str) -> str:
        """Return the page of a run."""
        return f"{self.root}run/{quote(name, safe='')}"

    def episodes(self, name: str, chosen: Mapping[str, str] | None = None, page: int = 0) -> str:
        """Return a page of the episodes that match."""
        query = {key: value for key, value in (chosen or {}).items() if value}
        return f"{self.run(name)}/episodes?{urlencode({**query, 'page': page})}"

    def episode(self, name: str, number: int, view: str = "episode") -> str:
        """Return the page of an episode, or of its group."""
        return f"{self.run(name)}/{view}/{number}"


class Pages:
    """The pages of the runs at `root` as HTML texts. All methods block, so the server calls them on threads.

    They raise NotFoundError, ConfigError if a query is wrong, and OrlError if files of the run cannot be read.
    """

    def __init__(self, root: Path, address: Address) -> None:
        self.catalog, self._address = Catalog(root), address
        self._indexes: dict[Path, Index] = {}
        self._decoders: dict[Path, Decoder | None] = {}

    def runs(self) -> str:
        """Return the list of runs."""
        return self._page("runs", "Runs", rows=self.catalog.rows())

    def run(self, name: str) -> str:
        """Return the page of a run: figures, curves, settings."""
        record = self._record(name)
        trainer = record.section("trainer")
        place = (record.steps[-1] if record.steps else 0, trainer.get("num_rollout"))
        values = {**values_of(record), "name": name, "place": place if trainer else None}
        state = state_of(record, last_change(record))
        return self._page("run", name, run=name, state=state, journal=has_journal(record.journal), **values)

    def episodes(self, name: str, query: Mapping[str, str]) -> str:
        """Return a page of a run's episodes."""
        record = self._record(name)
        index = self._index(record)
        number = query.get("page", "")
        chosen = {key: query.get(key, "").strip() for key in (*FILTERS, "order")}
        episodes = index.page(chosen, int(number) if number.isdecimal() and len(number) < 10 else 0)
        values = {"found": episodes, "chosen": chosen, "orders": tuple(ORDERS), "indexed": index.progress()}
        return self._page("episode_list", f"Episodes of {name}", run=name, record=record, **values)

    def one(self, view: str, name: str, number: int) -> str:
        """Return the page of an episode, or of its group."""
        record = self._record(name)
        index = self._index(record)
        if not 0 < number <= len(index.rows):
            raise NotFoundError(f"there is no episode {number}")
        row = index.rows[number - 1]
        rows = index.group(row)
        shown = rows[:WHOLE] if view == "group" else [row]
        title = "Group" if view == "group" else f"Episode {number}"
        return self._page(
            view,
            f"{title} of {name}",
            run=name,
            record=record,
            number=number,
            last=len(index.rows),
            rows=rows,
            episodes=[self._whole(record, index, one) for one in shown],
        )

    def problem(self, text: str) -> str:
        """Return a page that says what is wrong."""
        return self._page("problem", "Not possible", text=text)

    def _page(self, template: str, title: str, **values: object) -> str:
        return page(template, title=f"{title} · orl view", address=self._address, **values)

    def _record(self, name: str) -> Record:
        path = self.catalog.runs().get(name)
        if path is None:
            raise NotFoundError(f"there is no run {name}")
        return self.catalog.record(path)

    def _index(self, record: Record) -> Index:
        """Return the index of a run's journal. A large one may not hold everything yet."""
        if not has_journal(record.journal):
            raise NotFoundError(f"{record.folder.name} has no journal yet")
        index = self._indexes.setdefault(record.journal, Index(record.journal))
        index.refresh()
        return index

    def _whole(self, record: Record, index: Index, row: IndexRow) -> EpisodeRows:
        folder = record.folder if record.folder.is_dir() else record.folder.parent
        if self._decoders.get(folder) is None:
            self._decoders[folder] = load_decoder(record.journal, folder)
        step = "" if row.step is None else f", step {row.step}"
        title = f"Episode {row.number}{step}{', held out' if row.evaluation else ''}"
        return episode_rows(title, index.entry(row), self._decoders[folder])
