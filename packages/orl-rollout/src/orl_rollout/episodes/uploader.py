"""Uploads of finished rollouts to OpenReward, in the background, on the platform's wire form.

One thread follows the files of a journal and notes in a ledger next to them how far the platform has taken them. A
platform that stays away costs neither entries nor time of a rollout. Every entry is sent at least once, under
idempotent ids, and exactly once after a stop that had time to finish. Whoever opens the folder next sends the rest. One
process of a folder sends at a time: the holder of a lock on `uploads.lock`, which its death frees. An entry that is
marked as one with a secret is not uploaded (law L6).

Entries are sent in the order of their file, so the ledger `uploads.json` holds one offset a file. A platform that is
dead, overloaded or slow is asked again until the caller cancels. Only a 4xx that speaks of the events is final.
"""

from __future__ import annotations

import asyncio
import fcntl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Self

import msgspec
from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, boundary, cut

from orl_rollout.edge.files import replace
from orl_rollout.edge.http import HttpClient, read_error, retry_after
from orl_rollout.edge.retry import Waiting, backoff, retried
from orl_rollout.edge.secrets import api_key
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.journal import (
    Frame,
    decode_entry,
    encode_entry,
    frame,
    journal_files,
    read_frames,
    read_journal,
)
from orl_rollout.logs import logger_of
from orl_rollout.openreward.platform import REFUSALS, api_url
from orl_rollout.openreward.transport import FAULTS, Refusal

logger = logger_of(__name__)

LEDGER = "uploads.json"
BATCH_EVENTS = 128  # in one request
BATCH_BYTES = 1 << 20  # of one request, unless a single event is larger
POLL = 0.5  # seconds between two looks into the folder
FLUSH = 10.0  # seconds that a stop leaves for what is not yet sent
GRACE = 1.0  # seconds more, for the thread to end
IDLE_SECONDS = 15.0  # for which a connection without a request is kept
LONGEST = 300  # characters of a logged failure
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds before the second try, and before any
LONGEST_GIVEN_WAIT = 600.0  # the longest that a Retry-After is heeded
REQUEST_SECONDS = 60.0
AGAIN = frozenset({401, 402, 404, 405, 407, 408, 425, 429})  # key, account, address or time is wrong, not the events


def uploads(config: RunConfig, env_name: str) -> bool:
    """Return whether rollouts of an environment are uploaded: by `rollout.upload`, else the platform's, with a key.

    Raises:
        ConfigError: `rollout.upload` is set and there is no key.
    """
    if config.rollout.upload and not api_key():
        raise ConfigError("`rollout.upload` is on: set OPENREWARD_API_KEY")
    if config.rollout.upload is not None:
        return config.rollout.upload
    return bool(api_key()) and config.environments[env_name].base_url is None


class Counts(Struct, kw_only=True):
    """The fates of entries: `withheld` for their secrets, `refused` by the platform, `broken` unreadable."""

    sent: int = 0
    withheld: int = 0
    refused: int = 0
    broken: int = 0


class Uploader:
    """Sends the journal in `folder` while it is open. One for each process and folder.

    Raises:
        ConfigError: `rollout.upload` is set and there is no key.
        OrlError: there is no such folder, and it cannot be made.
    """

    def __init__(self, folder: str | Path, config: RunConfig) -> None:
        self.counts = Counts()
        self.finished = False
        self._chosen = frozenset(name for name in config.environments if uploads(config, name))
        self._folder = Path(folder)
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._seconds = FLUSH
        self._sizes: dict[Path, int] = {}  # of files when they were last read to the end
        self._places: dict[str, int] = {}  # the ledger: how far each file has been sent
        self._said: set[str] = set()  # what is logged once
        self._thread = threading.Thread(target=self._run, name="orl-uploads", daemon=True)
        if self._chosen:
            with boundary(OrlError, f"making the folder {folder}"):
                self._folder.mkdir(parents=True, exist_ok=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, seconds: float = FLUSH) -> bool:
        """Send what is in the journal, for at most `seconds`; return whether that was all. The next one sends the rest.

        Close the journal first: what is written later is not waited for.
        """
        if not self._chosen:
            self._loop.close()
            return True
        self._seconds = seconds
        with suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(seconds + GRACE)
        if not self.finished:
            logger.warning(
                "uploads: not all of %s was sent. `orl upload`, or the next run in this folder, sends the rest",
                self._folder,
            )
        return self.finished

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                with boundary(OrlError, f"uploading {self._folder}"):
                    runner.run(self._send_until_closed())
            except OrlError as fault:
                self._say_once(str(fault))

    async def _send_until_closed(self) -> None:
        sending = asyncio.create_task(self._follow())
        await self._closing.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await sending

    async def _follow(self) -> None:
        """Send what the journal gains until `close` is called, and then the rest."""
        with (self._folder / "uploads.lock").open("ab") as lock:
            async with HttpClient(api_url(), idle=IDLE_SECONDS) as http:
                ours = last = False
                while not last:
                    last = self._closing.is_set()
                    try:
                        with boundary(OrlError, f"uploading {self._folder}"):
                            ours = ours or self._take(lock)
                            if ours:
                                await self._send_all(http)
                                self.finished = last
                            elif last:
                                self._say_once(f"another process is sending {self._folder}")
                    except OrlError as fault:
                        self._say_once(str(fault))
                    if not last:
                        await self._pause(POLL)

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`. A call of `close` ends the wait, and later ones take their time."""
        if self._closing.is_set():
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _take(self, lock: IO[bytes]) -> bool:
        """Lock the ledger until `lock` is closed, and read it. Return False while another process holds it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._places = _read(self._folder / LEDGER)
        return True

    async def _send_all(self, http: HttpClient) -> None:
        """Send everything that is in the folder's files by now."""
        for path in journal_files(self._folder):
            size, sent = path.stat().st_size, self._places.get(path.name, 0)
            if size in (sent, self._sizes.get(path)):
                continue
            with path.open("rb") as records:
                for record in read_frames(records, sent, end=size):
                    await self._send(record, http)
                    self._settle(path.name, record.end)
            self._sizes[path] = size

    def _settle(self, name: str, offset: int) -> None:
        """Note that all in the file `name` before `offset` is sent. If that fails, the next process sends it again."""
        self._places[name] = offset
        try:
            replace(self._folder / LEDGER, msgspec.json.encode(self._places))
        except OSError as exc:
            self._say_once(f"what has been uploaded cannot be noted in {self._folder / LEDGER}: {exc.strerror}")

    async def _send(self, record: Frame, http: HttpClient) -> None:
        """Send one entry."""
        events = self._events(record)
        for batch in _batches(events):
            status = await post(http, b'{"events":[' + b",".join(batch) + b"]}", self._tell, self._pause)
            if status >= 300:
                self.counts.refused += 1
                self._say_once(f"the platform refuses some rollouts with HTTP {status}: they are left out")
                return
        self.counts.sent += bool(events)

    def _tell(self, fault: Exception) -> bool:
        """Log a fault of the platform. Return True: it is asked again."""
        text = str(fault) if isinstance(fault, Refusal) else f"{type(fault).__name__}: {fault}".removesuffix(": ")
        self._say_once(f"they wait for the platform: {cut(text, LONGEST)}")
        return True

    def _events(self, record: Frame) -> list[bytes]:
        """Return the events of an entry, each as JSON; none of one that is not to be sent."""
        try:
            entry = decode_entry(record.content, ids=False)
            if entry.replaced or entry.trajectory.job.task.env_name not in self._chosen:
                return []
            if not entry.trajectory.contains_secret:
                with boundary(OrlError, f"the events of {entry.key}"):
                    return [msgspec.json.encode(event) for event in events_of(entry, self._config)]
            self.counts.withheld += 1
        except OrlError as fault:
            self.counts.broken += 1
            self._say_once(str(fault))
        return []

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("uploads: %s", text)


def _batches(events: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut `events` into requests; the first event, the rollout's start, is alone in its own."""
    start = 0
    while start < len(events):
        end, size = start + 1, len(events[start])
        while start > 0 and end < min(len(events), start + BATCH_EVENTS):
            size += len(events[end])
            if size > BATCH_BYTES:
                break
            end += 1
        yield events[start:end]
        start = end


async def post(
    http: HttpClient,
    body: bytes,
    again: Callable[[Exception], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int:
    """Post until there is a final answer. Return its status: a 2xx, or a 4xx that refuses the body.

    `again` is told each fault.
    """
    waiting = Waiting(pauses=backoff(FIRST_WAIT, LONGEST_WAIT), longest_wish=LONGEST_GIVEN_WAIT, sleep=sleep)
    return await retried(lambda: _ask(http, body), FAULTS, again, waiting)


async def _ask(http: HttpClient, body: bytes) -> int:
    headers = {"x-api-key": api_key(), "Content-Type": "application/json"}
    async with asyncio.timeout(REQUEST_SECONDS):
        async with http.request("POST", "/v1/rollouts", data=BytesIO(body), headers=headers) as answer:
            await read_error(answer)  # its beginning, so that the connection can be used again
            status, wish = answer.status, retry_after(answer.headers.get("Retry-After"))
    if 200 <= status < 300 or (400 <= status < 500 and status not in AGAIN):
        return status
    raise Refusal(status, REFUSALS.get(status, f"HTTP {status}"), retry_after=wish)


def replace_lost(folder: Path) -> None:
    """Mark the lost rollouts of a journal that nobody writes as replaced: they are played again.

    Records move then, so everything is uploaded again, under the same ids.

    Raises:
        OrlError: a file cannot be read.
    """
    for file in journal_files(folder):
        if any(entry.lost for entry in read_journal(file)):
            (folder / LEDGER).unlink(missing_ok=True)
            marked = (structs.replace(entry, replaced=entry.lost) for entry in read_journal(file, replaced=True))
            replace(file, b"".join(frame(encode_entry(entry)) for entry in marked))
            file.chmod(0o600)


def unsent(folder: Path) -> bool:
    """Return whether files of the journal in `folder` hold more than was noted as sent. No folder holds nothing."""
    places = _read(folder / LEDGER)
    sizes = {file.name: file.stat().st_size for file in journal_files(folder) if file.is_file()}
    return any(places.get(name, 0) < size for name, size in sizes.items())


def _read(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        logger.warning("%s is not read, so everything is uploaded again: %s", path, exc)
        return {}
