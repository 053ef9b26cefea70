"""The web server of `orl view`: on loopback, read-only, behind a token in the address.

Pages load nothing from elsewhere, and a strict Content-Security-Policy keeps them from it, whatever episodes say.
They are made from the files of a run and an index of its journal: a row in memory for each episode. Each file is read
from where its last whole record ended, and an episode that is shown is read again from its place.
"""

from __future__ import annotations

import asyncio
import hmac
import operator
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web
from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.episodes.journal import Entry, Frame, decode_entry, journal_files, read_frames
from orl_rollout.run_folder.record import Record, has_journal

from orl_launcher.reports import EpisodeRow, row_of
from orl_launcher.view.catalog import Catalog, last_change, state_of
from orl_launcher.view.episode import Decoder, EpisodeRows, episode_rows, load_decoder
from orl_launcher.view.report import page, values_of

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASSETS = {"style.css": "text/css", "view.css": "text/css", "live.js": "text/javascript"}
HOSTS = ("127.0.0.1", "localhost", "[::1]")
PATHS = ("", "run/{run}", "run/{run}/{view:episodes}", "run/{run}/{view:episode|group}/{number:[0-9]{1,12}}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Viewer:
    """The viewer of the runs at `root`. `token` opens the pages."""

    def __init__(self, root: Path, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._pages = Pages(root, Address(f"/{self.token}/"))
        self._pages.catalog.runs()

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard])
        for path in PATHS:
            app.router.add_get(f"/{{token}}/{path}", self._answer)
        app.router.add_get("/{token}/{asset:[a-z]+[.][a-z]+}", self._asset)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer only who knows the token, and only requests that name this machine as the host."""
        host = (request.host or "").rpartition(":")[0] or request.host
        known = hmac.compare_digest(request.path.split("/")[1].encode(), self.token.encode())
        if not known or host not in HOSTS:
            answer: web.StreamResponse = web.Response(status=403, text="Open the address that orl view printed.\n")
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as refusal:
                answer = web.Response(status=refusal.status, text=f"{refusal.reason}\n")
        answer.headers.update(HEADERS)
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        """Answer with a page, which is made on a thread, or with one that says what is wrong."""
        status = 200
        try:
            text = await asyncio.to_thread(self._page, request)
        except OrlError as fault:
            status = 404 if isinstance(fault, NotFoundError) else 400 if isinstance(fault, ConfigError) else 500
            text = self._pages.problem(str(fault))
        return web.Response(status=status, text=text, content_type="text/html")

    def _page(self, request: web.Request) -> str:
        """Return a page. Files of a run may hold anything: they break only this page."""
        run, view, number = (request.match_info.get(name, "") for name in ("run", "view", "number"))
        with boundary(OrlError, f"making the page {request.rel_url.path}"):
            if number:
                return self._pages.one(view, run, int(number))
            if view:
                return self._pages.episodes(run, request.query)
            return self._pages.run(run) if run else self._pages.runs()

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["asset"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        text = files("orl_launcher.view").joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=ASSETS[name])


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


PAGE = 50  # episodes
GROUP = 32  # episodes of a group that are shown
SECONDS = 1.0  # that a page waits for what its journal has gained


class IndexRow(EpisodeRow, frozen=True, kw_only=True):
    """One episode and its place: it begins at the byte `start` of `file`."""

    environment: str
    file: Path
    start: int


ORDERS: dict[str, Callable[[IndexRow], Any]] = {
    "training first": lambda row: (row.evaluation, -row.number),  # episodes that train, and tokens in colour
    "newest": lambda row: -row.number,
    "oldest": lambda row: row.number,
    "highest reward": lambda row: (row.reward is None, -(row.reward or 0.0), row.number),
    "lowest reward": lambda row: (row.reward is None, row.reward or 0.0, row.number),
}
KINDS = {"training": False, "held-out": True}  # by `evaluation`
# By the names of the form: the field, how it is compared, and how the value is read.
FILTERS: dict[str, tuple[str, Callable[[Any, Any], bool], type[str] | type[float] | dict[str, Any]]] = {
    "environment": ("environment", operator.eq, str),
    "kind": ("evaluation", operator.eq, KINDS),
    "verdict": ("verdict", operator.eq, str),
    "ending": ("stop_reason", operator.eq, str),
    "task": ("task", operator.eq, str),
    "step_from": ("step", operator.ge, float),
    "step_to": ("step", operator.le, float),
    "reward_from": ("reward", operator.ge, float),
    "reward_to": ("reward", operator.le, float),
}


class EpisodePage(Struct, frozen=True, kw_only=True):
    """Page `page`, from 0, of the `total` episodes that match; `environments` and `endings` are all that there are."""

    rows: list[IndexRow]
    total: int
    page: int
    pages: int
    environments: list[str]
    endings: list[str]


class Index:
    """The index of one journal, a folder or a file. Threads share it."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.rows: list[IndexRow] = []
        self._read: dict[tuple[Path, int], int] = {}  # bytes of each file, by its name and inode
        self._lock = threading.Lock()

    def refresh(self, seconds: float = SECONDS) -> None:
        """Read what the journal has gained, for at most `seconds`. If a file was replaced, read all anew."""
        until = time.monotonic() + seconds
        with self._lock, boundary(OrlError, f"reading the journal {self.journal}"):
            sizes = self._sizes()
            if any(sizes.get(file, 0) < read for file, read in self._read.items()):
                self.rows, self._read = [], {}
            for (path, inode), size in sizes.items():
                with path.open("rb") as file:
                    for frame in read_frames(file, self._read.get((path, inode), 0), end=size):
                        self._add(frame, path)
                        self._read[path, inode] = frame.end
                        if time.monotonic() > until:
                            return

    def progress(self) -> float:
        """Return the share of the journal that is indexed."""
        return min(1.0, sum(self._read.values()) / (sum(self._sizes().values()) or 1))

    def entry(self, row: IndexRow) -> Entry:
        """Return an episode, read from the journal."""
        with boundary(OrlError, f"reading the journal {row.file}"), row.file.open("rb") as records:
            record = next(read_frames(records, row.start), None)
        if record is None or record.start != row.start:
            raise OrlError(f"{row.file}: no record at byte {row.start} any more")
        return decode_entry(record.content)

    def page(self, query: Mapping[str, str], page: int) -> EpisodePage:
        """Return page `page` of the episodes that match the form's `query`; the last one, if there are fewer."""
        order = _choice("order", query.get("order") or next(iter(ORDERS)), ORDERS)
        rows = matching = self.rows
        for name, (field, fits, form) in FILTERS.items():
            if text := query.get(name, "").strip():
                bound = _choice(name, text, form)
                matching = [
                    row for row in matching if (value := getattr(row, field)) is not None and fits(value, bound)
                ]
        pages = max(1, -(-len(matching) // PAGE))
        page = min(page, pages - 1)
        return EpisodePage(
            rows=sorted(matching, key=order)[page * PAGE :][:PAGE],
            total=len(matching),
            page=page,
            pages=pages,
            environments=sorted({row.environment for row in rows}),
            endings=sorted({row.stop_reason for row in rows}),
        )

    def group(self, row: IndexRow) -> list[IndexRow]:
        """Return the rollouts of the same task in the same step, the first GROUP."""
        same = (row.task, row.evaluation, row.step)
        return [one for one in self.rows if (one.task, one.evaluation, one.step) == same][:GROUP]

    def _sizes(self) -> dict[tuple[Path, int], int]:
        facts = {file: file.stat() for file in journal_files(self.journal)}
        return {(file, fact.st_ino): fact.st_size for file, fact in facts.items()}

    def _add(self, frame: Frame, file: Path) -> None:
        """Add the row of a record, unless it was replaced or is of another schema."""
        try:
            entry = decode_entry(frame.content, ids=False)
        except OrlError:
            return
        if not entry.replaced:
            row = structs.asdict(row_of(len(self.rows) + 1, entry))
            environment = entry.trajectory.job.task.env_name
            self.rows.append(IndexRow(**row, environment=environment, file=file, start=frame.start))


def _choice(name: str, text: str, form: type[str] | type[float] | dict[str, Any]) -> Any:
    """Return the value that a form's text stands for."""
    try:
        return form[text] if isinstance(form, dict) else form(text)
    except (KeyError, ValueError):
        advice = f"Choose one of: {', '.join(form)}" if isinstance(form, dict) else "Give a number"
        raise ConfigError(f"{name} is {text}. {advice}") from None
