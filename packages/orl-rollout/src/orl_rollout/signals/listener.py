"""The handler and the watcher of SIGINT, SIGTERM and SIGHUP. `interrupt` is the interface for the rest of orl.

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
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_SECONDS = 5.0  # from the first signal to the forced end, if no check comes and nothing needs to be saved
AGAIN_SECONDS = 10.0  # from the second signal to the forced end
RELEASE_SECONDS = 8.0  # for callbacks and releases at the forced end
POLL_SECONDS = 0.1
SAME_SECONDS = 0.25  # signals so close are one: a shell, `uv run` and the terminal may each pass it on

PATIENT, HELD = 2, 3  # signals that force the end of a patient and of a held block


class Listener:
    """The signals since `listening` began: `first` is the number of the first one, `count` says how many came.

    A Listener that is not installed receives none. `needed` holds, for each open block, how many signals force the end.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self.needed = [1]
        self.callbacks: list[Callable[[], None]] = []
        self.releases: list[Callable[[], None]] = []
        self.installed = False
        self._lock = threading.Lock()  # never taken by the signal handler
        self._since = self._latest = 0.0
        self._telling: list[threading.Thread] = []
        self._reader = self._writer = self._wakeup = -1
        self._kept: dict[signal.Signals, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="orl-signals", daemon=True)

    def exit_code(self, otherwise: int) -> int:
        """Return 128 plus the number of the first signal, or `otherwise` if none came."""
        return otherwise if self.first is None else 128 + self.first

    @contextmanager
    def registered(self, callbacks: list[Callable[[], None]], callback: Callable[[], None]) -> Generator[None]:
        """Hold `callback` in `callbacks`, which are those of this listener, while the block runs."""
        with self._lock:
            callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock:
                callbacks.remove(callback)

    @contextmanager
    def needing(self, signals: int) -> Generator[None]:
        """Force the end only after `signals` signals while the block runs. The time to it then starts again."""
        self.needed.append(signals)
        try:
            yield
        finally:
            self.needed.remove(signals)
            self._since = time.monotonic()

    def leave(self) -> None:
        """Note that the main thread acts on the signal. From now on only a second signal forces the end."""
        self.needed.append(PATIENT)

    def install(self) -> None:
        """Handle the signals that the caller does not ignore. A signal that `nohup` ignores stays ignored."""
        self.installed = True
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            kept = signal.getsignal(number)
            if kept is not None and kept is not signal.SIG_IGN:  # None: a handler in C, which stays
                self._kept[number] = kept
                signal.signal(number, self._note)

    def stop(self) -> None:
        """End the watcher. The handlers still note signals."""
        signal.set_wakeup_fd(self._wakeup)
        if self._thread.ident is not None:
            os.write(self._writer, b"\0")
            self._thread.join()
            os.close(self._reader)
            os.close(self._writer)

    def restore(self) -> None:
        """Give the signals back to the caller's handlers: SIGINT last, because that handler may raise here."""
        for number in reversed(self._kept):
            signal.signal(number, self._kept[number])

    def forget(self) -> None:
        """Give the signals back in a forked child, which shares the pipe and has no watcher."""
        if self.installed:
            signal.set_wakeup_fd(self._wakeup)
            self.restore()

    def _note(self, number: int, _frame: object) -> None:
        """Handle a signal. It may run inside a finalizer, so it must not raise, wait or take a lock."""
        if self.first is None:
            self.first = number

    def _watch(self) -> None:
        numbers = b""
        while 0 not in numbers:
            waited = POLL_SECONDS if self.count else None
            numbers = os.read(self._reader, 64) if select.select([self._reader], [], [], waited)[0] else b""
            for number in numbers:
                if number in SIGNALS:
                    self._count(number)
            seconds = (0.0, FIRST_SECONDS, AGAIN_SECONDS, 0.0)[min(self.count, 3)]
            if self.count >= max(self.needed) and time.monotonic() - self._since >= seconds:
                self._end_by_force()

    def _count(self, number: int) -> None:
        self._note(number, None)
        now, before, self._latest = time.monotonic(), self._latest, time.monotonic()
        if self.count and now - before < SAME_SECONDS:
            return
        self.count += 1
        self._since = now
        _leave_dead_terminal()
        with self._lock:
            callbacks = tuple(self.callbacks)
        self._telling += started(callbacks)

    def _end_by_force(self) -> None:
        with self._lock:
            releases = tuple(self.releases)
        threads = [*self._telling, *started((*releases, _say_forced))]
        ends = time.monotonic() + RELEASE_SECONDS
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        os._exit(self.exit_code(1))


def started(callbacks: Iterable[Callable[[], None]]) -> list[threading.Thread]:
    """Start each callback on a daemon thread of its own."""
    threads = [threading.Thread(target=callback, name="orl-signal", daemon=True) for callback in callbacks]
    for thread in threads:
        thread.start()
    return threads


def _leave_dead_terminal() -> None:
    """Redirect the standard streams to /dev/null if their terminal is gone. A write to it would fail."""
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
