"""The journal: every trajectory as one record of JSON, on disk when `record` returns.

A journal is the files `journal-*.jsonl.zst` of a folder. Each writer has files of its own, named by time, host and
process, so that any number of processes on several nodes share the folder. A record is one line of JSON in a zstd
frame, appended by one `write` without fsync: it survives the death of the process, SIGKILL included, but not that of
the machine. The reader skips torn records. A trajectory that waits for its judgement has a file of its own,
`unjudged-*`, until it is judged: what a process leaves there is read as ABORTED. Secrets are removed by the callers,
not here. The module knows no reader.

Plain lines take 2.4 to 2.5 times the disk and have no checksum. In one zstd stream, a torn byte costs everything behind
it. After a torn frame, reading continues at the next magic number.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import zstandard
from msgspec import Struct, structs
from orl_core import OrlError, RunAborted, Trajectory, boundary, to_data
from orl_core.text import clean, map_strings, plain

from orl_rollout.edge.secrets import without_ids
from orl_rollout.logs import logger_of
from orl_rollout.results.outcome import UNJUDGED, Outcome

logger = logger_of(__name__)

VERSION = 1  # of a record's schema
FILES = "journal-*.jsonl.zst"
UNJUDGED_FILES = "unjudged-*.jsonl.zst"  # one trajectory each
# Ids and logprobs: numpy's name of their type, a colon, and their bytes in base64. So numpy.frombuffer reads them.
_CODES = {"<i4": "i", "<f4": "f", "<f8": "d"}
FILE_BYTES = 256 << 20  # a file is followed by the next before it grows beyond
MAGIC = b"\x28\xb5\x2f\xfd"
LEVEL = 1  # packed ids hardly become smaller from here on, and take two to three times as long
CHUNK = 1 << 14  # bytes


class Frame(Struct, frozen=True, kw_only=True):
    """A whole frame: its bytes are `[start:end]` of the file, `content` is what was put in."""

    start: int
    end: int
    content: bytes


def frame(content: bytes) -> bytes:
    """Return `content` as one frame."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(content)


def read_frames(file: BinaryIO, position: int = 0, *, end: float = math.inf) -> Iterator[Frame]:
    """Yield the whole frames of `file` from `position` on, in order; a gap between two of them is torn.

    `end` is the size of a file that others write to. No frame is looked for behind it: the one before may be half
    written, and would be taken for torn once the next one is there.
    """
    while 0 <= position < end:
        whole = _frame_at(file, position)
        if whole is None:
            position = _magic_after(file, position + 1)
        elif _begins(file, whole.end - 1):  # it lacks its last byte, and took the first one of the next frame
            position = whole.end - 1
        else:
            yield whole
            position = whole.end


def _begins(file: BinaryIO, place: int) -> bool:
    file.seek(place)
    return file.read(len(MAGIC)) == MAGIC


def _frame_at(file: BinaryIO, start: int) -> Frame | None:
    if not _begins(file, start):
        return None
    file.seek(start)
    inflating = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    try:
        while not inflating.eof and (chunk := file.read(CHUNK)):
            pieces.append(inflating.decompress(chunk))
    except zstandard.ZstdError:
        return None
    if not inflating.eof:
        return None
    return Frame(start=start, end=file.tell() - len(inflating.unused_data), content=b"".join(pieces))


def _magic_after(file: BinaryIO, position: int) -> int:
    """Return the place where the next frame may begin; -1 if there is none."""
    file.seek(position)
    tail = b""
    while chunk := file.read(CHUNK):
        place = (tail + chunk).find(MAGIC)
        if place >= 0:
            return position - len(tail) + place
        position += len(chunk)
        tail = (tail + chunk)[1 - len(MAGIC) :]
    return -1


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record. `key` is the rollout's, `step` the trainer's if it is known, `time` in seconds since the epoch.

    `replaced` marks a lost attempt at a rollout that is played again: it counts nowhere.
    """

    version: int = VERSION
    key: str
    time: float
    reward: float
    success: bool
    step: int | None = None
    replaced: bool = False
    trajectory: Trajectory

    @property
    def lost(self) -> bool:
        """Return whether nothing judged the rollout, so that it may be played again."""
        return self.trajectory.stop_reason in UNJUDGED

    @property
    def outcome(self) -> Outcome:
        """Return what was recorded."""
        data = to_data(self.trajectory, reward=self.reward)
        return Outcome(trajectory=self.trajectory, reward=self.reward, success=self.success, datums=data)


class Journal:
    """Appends to files of its own in `folder`, which is made. Threads and event loops may share it, forks may not.

    Raises:
        OrlError: a file cannot be made there.
    """

    def __init__(self, folder: str | Path, *, file_bytes: int = FILE_BYTES) -> None:
        self.folder = Path(folder)
        self._file_bytes = file_bytes
        self._began = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{socket.gethostname()}-{os.getpid()}"
        self._files = 0  # names that were tried
        self._size = 0
        with boundary(OrlError, f"opening a journal in {folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._next_file()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orl-journal")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def record(
        self, outcome: Outcome, *, step: int | None = None, replaced: bool = False, kept: Path | None = None
    ) -> None:
        """Write one outcome; it is safe from the process's death on return. Readers leave out one that is `replaced`.

        `kept` is the file that `keep` returned; it is removed.

        Raises:
            RunAborted: it cannot be written (a full disk); nothing of it is then left in the file. It must not count,
                and the next ones could not be recorded either.
        """
        await self._on_thread(self._record, outcome, step, replaced, kept)

    async def keep(self, unjudged: Outcome, step: int | None) -> Path:
        """Write an outcome that waits for its judgement to a file of its own. Return the file.

        Raises:
            RunAborted: it cannot be written.
        """
        path = self.folder / UNJUDGED_FILES.replace("*", uuid.uuid4().hex)
        await self._on_thread(self._keep, path, unjudged, step)
        return path

    def close(self) -> None:
        """Write what was handed over, and close the file; nothing rests on it."""
        self._thread.shutdown()
        self._file.close()

    async def _on_thread(self, write: Callable[..., None], *args: Any) -> None:
        with boundary(RunAborted, f"nothing can be recorded any more: writing the journal in {self.folder}"):
            await asyncio.get_running_loop().run_in_executor(self._thread, write, *args)

    def _keep(self, path: Path, unjudged: Outcome, step: int | None) -> None:
        path.touch(0o600)
        path.write_bytes(_frame_of(unjudged, step))

    def _record(self, outcome: Outcome, step: int | None, replaced: bool, kept: Path | None) -> None:
        record = _frame_of(outcome, step, replaced)
        if self._size and self._size + len(record) > self._file_bytes:
            self._file.close()
            self._file, self._size = self._next_file(), 0
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(record)
        if kept is not None:
            kept.unlink(missing_ok=True)

    def _next_file(self) -> FileIO:
        while True:
            path = self.folder / FILES.replace("*", f"{self._began}-{self._files:04}")
            self._files += 1
            with suppress(FileExistsError):
                path.touch(0o600, exist_ok=False)
                return path.open("ab", buffering=0)


def journal_files(path: str | Path) -> list[Path]:
    """Return the files of the journal in the folder `path`, the oldest first; or `path`, if a file."""
    path = Path(path)
    return sorted(path.glob(FILES)) if path.is_dir() else [path]


def read_journal(path: str | Path, *, replaced: bool = False) -> Iterator[Entry]:
    """Yield the entries of the journal at `path`, a folder or one file, in order; last those that were never judged.

    Attempts that were replaced are left out, unless `replaced` is set. What is torn or foreign is skipped and logged.

    Raises:
        OrlError: a file cannot be read.
    """
    unjudged = _unjudged(Path(path))
    for file in journal_files(path):
        with boundary(OrlError, f"reading the journal {file}"):
            for entry in _entries(file):
                if not entry.replaced:
                    unjudged.pop(entry.key, None)  # the process died between the record and the end of the file
                if replaced or not entry.replaced:
                    yield entry
    yield from unjudged.values()


def _unjudged(folder: Path) -> dict[str, Entry]:
    """Return what is not judged yet, by key."""
    entries: dict[str, Entry] = {}
    for file in sorted(folder.glob(UNJUDGED_FILES)):
        with suppress(FileNotFoundError):  # it has been judged meanwhile
            entries |= {entry.key: entry for entry in _entries(file)}
    return entries


def _entries(file: Path) -> Iterator[Entry]:
    position = 0
    with file.open("rb") as records:
        for record in read_frames(records):
            _warn_of_gap(file, position, record.start)
            position = record.end
            try:
                entry = decode_entry(record.content)
            except OrlError as fault:
                logger.warning("%s: the record at byte %d is skipped: %s", file, record.start, fault)
            else:
                yield entry
        _warn_of_gap(file, position, file.stat().st_size)


def _warn_of_gap(file: Path, start: int, end: int) -> None:
    if end > start:
        logger.warning("%s: skipped %d bytes at offset %d: incomplete record", file, end - start, start)


def _frame_of(outcome: Outcome, step: int | None, replaced: bool = False) -> bytes:
    entry = Entry(
        key=outcome.trajectory.job.rollout_id,
        time=time.time(),
        reward=outcome.reward,
        success=outcome.success,
        step=step,
        replaced=replaced,
        trajectory=outcome.trajectory,
    )
    return frame(encode_entry(entry))


def encode_entry(entry: Entry) -> bytes:
    """Return one line of JSON with its end. Ids and logprobs are packed; the engine's `extras` are left out."""
    tree = plain(structs.replace(entry, trajectory=without_ids(entry.trajectory)))
    for turn, written in zip(entry.trajectory.turns, tree["trajectory"]["turns"], strict=True):
        written["observation"] = pack_ids(turn.observation)
        for generation, one in zip(turn.generations, written["generations"], strict=True):
            one["ids"], one["logprobs"] = pack_ids(generation.token_ids), pack_logprobs(generation.logprobs)
            del one["extras"]
    try:
        return msgspec.json.encode(tree) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(map_strings(tree, clean)) + b"\n"


def decode_entry(line: bytes, *, ids: bool = True) -> Entry:
    """Return the entry of one line; where `ids` are not wanted, without them and their logprobs, which are most of it.

    Raises:
        OrlError: the line is of another schema.
    """
    with boundary(OrlError, "no entry of this schema"):
        tree: Any = msgspec.json.decode(line)
        for turn in tree["trajectory"]["turns"]:
            turn.pop("branch", None)  # of the release before
            turn["observation"] = unpack(turn["observation"]) if ids else ()
            for generation in turn["generations"]:
                for name in ("ids", "logprobs"):
                    generation[name] = unpack(generation[name]) if ids else ()
        return msgspec.convert(tree, Entry)


def pack_ids(ids: Sequence[int]) -> str:
    """Pack `ids` of 31 bits, as those of a vocabulary and of a `Generation` are."""
    return _text("<i4", _bytes("<i4", ids))


def pack_logprobs(logprobs: Sequence[float]) -> str:
    """Pack numbers in the range of single precision, as those of a `Generation` are, without loss."""
    short = _bytes("<f4", logprobs)
    if _numbers("<f4", short) == tuple(logprobs):
        return _text("<f4", short)
    return _text("<f8", _bytes("<f8", logprobs))


def unpack(packed: str) -> tuple[float, ...]:
    """Return the numbers that were packed."""
    kind, _, text = packed.partition(":")
    return _numbers(kind, base64.b64decode(text, validate=True))


def _bytes(kind: str, numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}{_CODES[kind]}", *numbers)


def _numbers(kind: str, raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // int(kind[-1])}{_CODES[kind]}", raw)


def _text(kind: str, raw: bytes) -> str:
    return f"{kind}:{base64.b64encode(raw).decode()}"
