"""The list of a run's open sessions, which outlives SIGKILL: the next start of the run closes what a process left open.

Servers keep a session, and its sandbox, for minutes or for ever, and a full server lets no run start. Each process
appends to a file of its own next to the journal, `sessions-HOST-PID-START.jsonl`: a line if a session opens, a line if
it is closed. The file holds names of sessions, no secret, and is never uploaded. The module asks no server.
"""

from __future__ import annotations

import glob
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct
from orl_core.errors import ConfigError

from orl_rollout.edge.files import read_lines
from orl_rollout.logs import Sparing, logger_of

FILES = "sessions-*.jsonl"
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class _Line(Struct, frozen=True, kw_only=True):
    """One event: session `name` of `environment` has opened; without an environment, it is closed."""

    name: str
    environment: str = ""


class OpenSessions:
    """The list of this process in `folder`. Threads may share it.

    `checkpoint` is what the run continues, in the folder of the run that saved it; its sessions are closed too.
    """

    def __init__(self, folder: str | Path, checkpoint: str | None = None) -> None:
        self._folder = Path(folder)
        begun = Path(checkpoint).absolute() if checkpoint else None
        self._folders = {self._folder.absolute(), *((begun, *begun.parents[:2]) if begun else ())}
        own = os.getpid()
        self._path = self._folder / FILES.replace("*", f"{socket.gethostname()}-{own}-{start_of(own)}")
        self._open: set[str] = set()
        self._lock = threading.Lock()
        self._warnings = Sparing(logger_of("orl"))
        self._file = -1

    def opened(self, environment: str, name: str) -> None:
        """Note that the session `name` of `environment` has opened."""
        with self._lock:
            self._open.add(name)
            self._append(_Line(name=name, environment=environment))

    def closed(self, name: str) -> None:
        """Note that the session `name` is closed. Without an open session, the list is empty."""
        with self._lock:
            if name in self._open:
                self._open.discard(name)
                self._append(_Line(name=name))

    def close(self) -> None:
        """Close the file. Remove it, unless it names an open session."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
                if not self._open:
                    self._path.unlink(missing_ok=True)

    def left(self) -> list[tuple[Path, dict[str, str]]]:
        """Return the lists that dead processes of this host left: the file, and the environment of each session."""
        lists: list[tuple[Path, dict[str, str]]] = []
        named = FILES.replace("*", f"{glob.escape(socket.gethostname())}-*")
        for path in sorted(path for folder in self._folders for path in folder.glob(named)):
            process, _, start = path.stem.removeprefix(f"sessions-{socket.gethostname()}-").partition("-")
            if process.isdecimal() and start_of(int(process)) != start:
                with suppress(OSError, ConfigError):  # another process of this run has closed them
                    lists.append((path, _open_in(path)))
        return lists

    def _append(self, line: _Line) -> None:
        """Write a line. A list that cannot be written loses no rollout."""
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if self._open:
                os.write(self._file, msgspec.json.encode(line) + b"\n")
            else:
                os.ftruncate(self._file, 0)
        except OSError as fault:
            self._warnings.warn(f"the list of open sessions cannot be written: {fault}")


def _open_in(path: Path) -> dict[str, str]:
    """Return the environment of each session that the list at `path` leaves open. A torn line is skipped."""
    sessions: dict[str, str] = {}
    for text in read_lines(path):
        with suppress(msgspec.MsgspecError):
            line = msgspec.json.decode(text, type=_Line)
            if line.environment:
                sessions[line.name] = line.environment
            else:
                sessions.pop(line.name, None)
    return sessions


def start_of(process: int) -> str:
    """Return when `process` began; "" if it has ended. No later process of that id shares it."""
    with suppress(OSError, psutil.Error):
        running = psutil.Process(process)
        if running.status() in ENDED:
            return ""
        fields = Path(f"/proc/{process}/stat")  # ticks since the machine started: the clock may be set
        return fields.read_text().rpartition(")")[2].split()[19] if fields.exists() else str(running.create_time())
    return ""
