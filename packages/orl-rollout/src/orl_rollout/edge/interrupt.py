"""SIGINT, SIGTERM and SIGHUP: recorded by a handler that never raises, obeyed where stopping is safe.

An exception that a handler raises inside a weakref callback, a finalizer or a garbage collection is dropped by Python,
and the signal is lost. So the handler only sets a flag. Three things act on the flag:

- `check` raises Interrupted at points of the caller's choice. Each later call raises again.
- A watcher thread calls the callbacks of `notified`, which wake a waiting thread and cancel the work of an event loop.
- The watcher ends the process by force if the main thread does not reach a check (native code, a long import).

The watcher reads the signals from a pipe that the C handler writes (`signal.set_wakeup_fd`), so it sees a signal even
while the main thread is in native code. Native code that never releases the interpreter's lock stops the watcher too.
Without `listening`, this module has no effect and the caller's handlers stay in place.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar, cast

from orl_core.errors import OrlError, boundary

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_SECONDS = 5.0  # from the first signal to the forced end, if no check comes and nothing needs to be saved
AGAIN_SECONDS = 10.0  # from the second signal to the forced end
RELEASE_SECONDS = 8.0  # for callbacks and releases at the forced end
POLL_SECONDS = 0.1
SAME_SECONDS = 0.25  # signals so close are one: a shell, `uv run` and the terminal may each pass it on

PATIENT, HELD = 2, 3  # signals that force the end of a patient and of a held block


class Listener:
    """The signals since `listening` began: `first` is the number of the first one, `count` says how many came.

    A Listener that is not installed receives none. `needed` holds, for each open block, how many signals force the end;
    the time to it begins when there are so many. A main thread that acts on a signal adds PATIENT for good.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self.needed = [1]
        self.callbacks: list[Callable[[], None]] = []
        self.releases: list[Callable[[], None]] = []
        self.installed = False
        self._since = self._latest = 0.0
        self._telling: list[threading.Thread] = []
        self._reader = self._writer = self._wakeup = -1
        self._kept: dict[signal.Signals, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="orl-signals", daemon=True)

    def exit_code(self, otherwise: int) -> int:
        """Return 128 plus the number of the first signal, or `otherwise` if none came."""
        return otherwise if self.first is None else 128 + self.first

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

    def uninstall(self) -> None:
        """End the watcher, and give the signals back: SIGINT last, because the caller's handler may raise here.

        A forked child shares the pipe and has no watcher.
        """
        signal.set_wakeup_fd(self._wakeup)
        if self._thread.is_alive():
            os.write(self._writer, b"\0")
            self._thread.join()
            os.close(self._reader)
            os.close(self._writer)
        for number in reversed(self._kept):
            signal.signal(number, self._kept[number])

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
            if self.count < max(self.needed):
                self._since = time.monotonic()
            elif time.monotonic() - self._since >= seconds:
                self._end_by_force()

    def _count(self, number: int) -> None:
        self._note(number, None)
        now, before, self._latest = time.monotonic(), self._latest, time.monotonic()
        if self.count and now - before < SAME_SECONDS:
            return
        self.count += 1
        self._since = now
        _leave_dead_terminal()
        self._telling += started(tuple(self.callbacks))

    def _end_by_force(self) -> None:
        threads = [*self._telling, *started((*self.releases, _say_forced))]
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


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end. Like KeyboardInterrupt it passes through `except Exception`."""


_listener = Listener()  # the installed one, or one that receives no signal


@contextmanager
def listening() -> Generator[Listener]:
    """Own the signals while the block runs, then give them back. Inside another block, or a thread, it changes nothing.

    At the end it calls each release that is still registered with `released`: its block was abandoned.
    """
    global _listener  # noqa: PLW0603  signals belong to the process
    if _listener.installed or threading.current_thread() is not threading.main_thread():
        yield _listener
        return
    listener = _listener = Listener()
    try:
        listener.install()
        yield listener
    finally:
        for thread in started(tuple(listener.releases)):
            thread.join(RELEASE_SECONDS)
        _listener = Listener()
        listener.uninstall()


def check() -> None:
    """Raise if a signal came, except in a `held` block.

    Raises:
        Interrupted: a signal asks the command to end.
    """
    if _listener.first is not None and HELD not in _listener.needed:
        _listener.needed.append(PATIENT)
        raise Interrupted(signal.Signals(_listener.first).name)


def received() -> bool:
    """Return whether a signal came."""
    return _listener.first is not None


def count() -> int:
    """Return how many signals came. From the second on, callers stop waiting for anything that can be left."""
    return _listener.count


@contextmanager
def _listed(members: list[T], member: T) -> Generator[None]:
    """Keep `member` in a list while the block runs."""
    members.append(member)
    try:
        yield
    finally:
        members.remove(member)


@contextmanager
def notified(callback: Callable[[], None]) -> Generator[None]:
    """Call `callback` at every signal, on a thread of its own; at once if a signal came before. It may run twice."""
    with _listed(_listener.callbacks, callback):
        if received():
            callback()
        yield


def released(release: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `release`, on a thread of its own, if the process ends by force or abandons the block."""
    return _listed(_listener.releases, release)


def patient() -> AbstractContextManager[None]:
    """Let the first signal wait for a check, however long it takes. Only a second one ends the process by force."""
    return _listed(_listener.needed, PATIENT)


def held() -> AbstractContextManager[None]:
    """Finish the whole block: `check` does not raise here, and only a third signal ends the process by force."""
    return _listed(_listener.needed, HELD)


def result_of(future: Future[T], seconds: float | None = None) -> T:
    """Wait for `future` of another thread, for `seconds` at most. A signal ends the wait.

    Raises:
        Interrupted: a signal came first.
        TimeoutError: it is not set in time.
    """
    awake = threading.Event()
    future.add_done_callback(lambda _: awake.set())
    with notified(awake.set):
        awake.wait(seconds)
    check()
    return future.result(0)


def on_thread(work: Callable[[], T], what: str = "a bug in orl") -> Future[T]:
    """Start `work` on a daemon thread: it does not keep the process alive. `what` as in `boundary`."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a caller that is cancelled cannot cancel the work

    def target() -> None:
        try:
            with boundary(OrlError, what):
                done.set_result(work())
        except (OrlError, Interrupted) as exc:
            done.set_exception(exc)

    threading.Thread(target=target, name="orl-work", daemon=True).start()
    return done


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` as asyncio.run does. Each signal cancels it. A stuck thread of its executor is left behind.

    Raises:
        Interrupted: a signal came.
    """
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(_Executor())
        try:
            done = runner.run(cancelled(work))
        except asyncio.CancelledError:
            check()
            raise
    check()
    return done


async def cancelled(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` on any event loop. Each signal cancels it."""
    task, loop = cast("asyncio.Task[Any]", asyncio.current_task()), asyncio.get_running_loop()

    def cancel() -> None:
        _listener.needed.append(PATIENT)
        task.cancel()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed: the work is done
            loop.call_soon_threadsafe(cancel)

    with notified(wake):
        return await work


class _Executor(ThreadPoolExecutor):
    """Waits for its threads at the end, unless a signal came."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait and not received(), cancel_futures=cancel_futures or received())


def _forget_in_child() -> None:
    """Give a forked child the handlers that this process began with: its signals are not ours."""
    global _listener
    listener, _listener = _listener, Listener()
    if listener.installed:
        listener.uninstall()


os.register_at_fork(after_in_child=_forget_in_child)
