"""The handler and the watcher of SIGINT, SIGTERM and SIGHUP. `interrupt` is what the rest of orl uses.

The watcher reads the signals from a pipe that the C handler writes (`signal.set_wakeup_fd`), so it sees a signal even
while the main thread is in native code. Native code that never releases the interpreter's lock stops the watcher too.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_SECONDS = 5.0  # from the first signal to the end by force, where no check comes and nothing needs to be saved
AGAIN_SECONDS = 10.0  # from the second signal to the end by force
RELEASE_SECONDS = 8.0  # for callbacks and releases, when the process ends by force
POLL_SECONDS = 0.1
SAME_SECONDS = 0.25  # signals so close are one: a shell, `uv run` and the terminal may each pass it on


class Listener:
    """The signals since `listening` began: `first` is the number of the first one, `count` says how many came."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self.leaving = False  # the main thread knows, and cleans up
        self.patient = self.held = 0
        self.callbacks: list[Callable[[], None]] = []
        self.releases: list[Callable[[], None]] = []
        self.lock = threading.Lock()  # never taken by the signal handler
        self._since = self._latest = 0.0
        self._telling: list[threading.Thread] = []
        self._reader, self._writer = os.pipe()
        self._kept: dict[signal.Signals, Any] = {}
        self._wakeup: int | None = None
        self._thread = threading.Thread(target=self._watch, name="orl-signals", daemon=True)

    def exit_code(self, otherwise: int) -> int:
        """Return 128 plus the number of the first signal, or `otherwise` where none came."""
        return otherwise if self.first is None else 128 + self.first

    def note(self, number: int, _frame: object) -> None:
        """Handle a signal. It may run inside a finalizer, so it must not raise, wait or take a lock."""
        if self.first is None:
            self.first = number

    def leave(self) -> None:
        """Note that the main thread acts on the signal: from now on only a further signal ends the process by force."""
        self.leaving = True

    def postpone(self) -> None:
        """Count the time to the end by force from now on."""
        self._since = time.monotonic()

    def install(self) -> None:
        """Handle the signals that the caller does not ignore; what `nohup` ignores stays ignored."""
        os.set_blocking(self._writer, False)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            kept = signal.getsignal(number)
            if kept is not None and kept is not signal.SIG_IGN:  # None: a handler of C, which is not ours to change
                self._kept[number] = kept
                signal.signal(number, self.note)

    def stop(self) -> None:
        """End the watcher. The handlers still note what comes."""
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._wakeup)
        os.write(self._writer, b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def restore(self) -> None:
        """Give the signals back to the caller's handlers: SIGINT last, because that handler may raise here."""
        for number in reversed(self._kept):
            signal.signal(number, self._kept[number])

    def forget(self) -> None:
        """Give the signals back in a forked child, which shares the pipe and has no watcher."""
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._wakeup)
        self.restore()

    def _watch(self) -> None:
        numbers = b""
        while 0 not in numbers:
            waited = POLL_SECONDS if self.count else None
            numbers = os.read(self._reader, 64) if select.select([self._reader], [], [], waited)[0] else b""
            for number in numbers:
                if number in SIGNALS:
                    self._count(number)
            if self._overdue():
                self._end_by_force()

    def _count(self, number: int) -> None:
        self.note(number, None)
        now, before, self._latest = time.monotonic(), self._latest, time.monotonic()
        if self.count and now - before < SAME_SECONDS:
            return
        self.count += 1
        self._since = now
        _leave_dead_terminal()
        with self.lock:
            callbacks = tuple(self.callbacks)
        self._telling += started(callbacks)

    def _overdue(self) -> bool:
        threshold = 3 if self.held else 2 if self.patient or self.leaving else 1
        if self.count < threshold:
            return False
        seconds = (FIRST_SECONDS, AGAIN_SECONDS, 0.0)[min(self.count, 3) - 1]
        return time.monotonic() - self._since >= seconds

    def _end_by_force(self) -> None:
        with self.lock:
            releases = tuple(self.releases)
        threads = [*self._telling, *started((*releases, _say_forced))]
        ends = time.monotonic() + RELEASE_SECONDS
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        os._exit(self.exit_code(1))


def started(callbacks: tuple[Callable[[], None], ...]) -> list[threading.Thread]:
    """Start each callback on a daemon thread of its own."""
    threads = [threading.Thread(target=callback, name="orl-signal", daemon=True) for callback in callbacks]
    for thread in threads:
        thread.start()
    return threads


def _leave_dead_terminal() -> None:
    """Point the standard streams to nowhere where their terminal is gone: what writes to it would fail."""
    for stream in (0, 1, 2):
        try:
            os.write(stream, b"")
        except OSError as exc:
            if exc.errno == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, stream)
                os.close(nowhere)


def _say_forced() -> None:
    os.write(2, b"orl: interrupted, and ended by force\n")
