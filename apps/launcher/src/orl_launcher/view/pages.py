"""The pages of `orl view`: what each shows, made from the files of a run and the index of its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from msgspec import Struct
from orl_core.errors import OrlError
from orl_rollout.run_folder.record import Record, has_journal

from orl_launcher.reports import EpisodeRow
from orl_launcher.view.advantages import LARGEST, advantages_of, compared
from orl_launcher.view.catalog import Catalog, last_change, state_of
from orl_launcher.view.episode import EpisodeRows, episode_rows
from orl_launcher.view.html import page
from orl_launcher.view.index import FILTERS, ORDERS, Index, Indexes
from orl_launcher.view.pieces import Decoder, load_decoder
from orl_launcher.view.report import values_of

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
        """Return the page of an episode, of its group, or of its task over training."""
        return f"{self.run(name)}/{view}/{number}"


class Pages:
    """Pages as HTML texts. All methods block, so the server calls them on threads.

    Raises:
        NotFoundError: there is no such run or episode.
        ConfigError: the query is wrong.
        OrlError: files of the run cannot be read.
    """

    def __init__(self, catalog: Catalog, indexes: Indexes, address: Address) -> None:
        self._catalog, self._indexes, self._address = catalog, indexes, address
        self._decoders: dict[Path, Decoder | None] = {}

    def runs(self) -> str:
        """Return the list of runs."""
        return self._page("runs", "Runs", rows=self._catalog.rows())

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

    def episode(self, name: str, number: int) -> str:
        """Return one episode."""
        record, index, row = self._found(name, number)
        (episode,), known = self._whole(record, index, [row])
        values = {"episode": episode, "rows": index.group(row), "advantages": known, "last": index.last_number()}
        return self._page(
            "one_episode", f"Episode {number} of {name}", run=name, record=record, number=number, **values
        )

    def group(self, name: str, number: int) -> str:
        """Return the rollouts of one task in one step side by side."""
        record, index, row = self._found(name, number)
        rows = index.group(row)
        whole, known = self._whole(record, index, rows[:WHOLE])
        return self._page(
            "group", f"Group of {name}", run=name, record=record, rows=rows, episodes=whole, advantages=known
        )

    def task(self, name: str, number: int) -> str:
        """Return the first and the last rollout of one task, and a list of those between."""
        record, index, row = self._found(name, number)
        rows = index.attempts(row)
        whole, _ = self._whole(record, index, [*rows[:1], *rows[1:][-1:]])
        return self._page("task", f"A task of {name}", run=name, record=record, rows=rows, episodes=whole)

    def problem(self, text: str) -> str:
        """Return a page that says what is wrong."""
        return self._page("problem", "Not possible", text=text)

    def _page(self, template: str, title: str, **values: object) -> str:
        return page(template, title=f"{title} · orl view", address=self._address, **values)

    def _record(self, name: str) -> Record:
        path = self._catalog.runs().get(name)
        if path is None:
            raise NotFoundError(f"there is no run {name}")
        return self._catalog.record(path)

    def _index(self, record: Record) -> Index:
        journal = record.journal if record.folder.is_dir() else record.folder
        if not has_journal(journal):
            raise NotFoundError(f"{record.folder.name} has no journal yet")
        return self._indexes.of(journal)

    def _found(self, name: str, number: int) -> tuple[Record, Index, EpisodeRow]:
        record = self._record(name)
        index = self._index(record)
        row = index.row(number)
        if row is None:
            raise NotFoundError(f"there is no episode {number}")
        return record, index, row

    def _whole(
        self, record: Record, index: Index, rows: Sequence[EpisodeRow]
    ) -> tuple[list[EpisodeRows], dict[int, Sequence[float]]]:
        """Return whole episodes, and the advantages in their groups, by number, as far as they are known."""
        folder = record.folder if record.folder.is_dir() else record.folder.parent
        if self._decoders.get(folder) is None:
            self._decoders[folder] = load_decoder(record.journal, folder)
        known: dict[int, Sequence[float]] = {}
        for row in rows:
            if row.step is not None and not row.evaluation and row.number not in known:
                numbers = [one.number for one in index.group(row, LARGEST + 1)]
                known |= {key: list[float]() for key in numbers}
                if compared(record.config, len(numbers)):
                    group = [*filter(None, map(index.entry, numbers))]
                    known |= zip(numbers, advantages_of(record.config, group), strict=False)
        whole = [
            episode_rows(_title(row), entry, self._decoders[folder], known.get(row.number, ()))
            for row in rows
            if (entry := index.entry(row.number))
        ]
        return whole, known


def _title(row: EpisodeRow) -> str:
    step = "" if row.step is None else f", step {row.step}"
    return f"Episode {row.number}{step}{', held out' if row.evaluation else ''}"
