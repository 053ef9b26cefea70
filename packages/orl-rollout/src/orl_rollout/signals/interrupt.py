"""SIGINT, SIGTERM and SIGHUP: recorded by a handler that never raises, obeyed where stopping is safe.

An exception that a handler raises inside a weakref callback, a finalizer or a garbage collection is dropped by Python,
and the signal is lost. So the handler only sets a flag. Three things act on the flag:

- `check` raises Interrupted at points of the caller's choice. Each later call raises again.
- A watcher thread calls the callbacks of `notified`, which wake a waiting thread and cancel the work of an event loop.
- The watcher ends the process by force if the main thread does not reach a check (native code, a long import).

`listener` holds the handler and the watcher. Without `listening`, this module has no effect and the caller's handlers
stay in place.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar, cast

from orl_core.errors import OrlError, boundary

from orl_rollout.signals.listener import HELD, PATIENT, RELEASE_SECONDS, Listener, started

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end. Like KeyboardInterrupt it passes through `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


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
        listener.stop()
        _listener = Listener()
        listener.restore()


def check() -> None:
    """Raise if a signal came, except in a `held` block.

    Raises:
        Interrupted: a signal asks the command to end.
    """
    if _listener.first is not None and HELD not in _listener.needed:
        _listener.leave()
        raise Interrupted(_listener.first)


def received() -> bool:
    """Return whether a signal came."""
    return _listener.first is not None


def count() -> int:
    """Return how many signals came. From the second on, callers stop waiting for anything that can be left."""
    return _listener.count


@contextmanager
def notified(callback: Callable[[], None]) -> Generator[None]:
    """Call `callback` at every signal, on a thread of its own; at once if a signal came before. It may run twice."""
    with _listener.registered(_listener.callbacks, callback):
        if received():
            callback()
        yield


def released(release: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `release`, on a thread of its own, if the process ends by force or abandons the block."""
    return _listener.registered(_listener.releases, release)


def patient() -> AbstractContextManager[None]:
    """Let the first signal wait for a check, however long it takes. Only a second one ends the process by force."""
    return _listener.needing(PATIENT)


def held() -> AbstractContextManager[None]:
    """Finish the whole block: `check` does not raise here, and only a third signal ends the process by force."""
    return _listener.needing(HELD)


def result_of(future: Future[T], seconds: float | None = None) -> T:
    """Return the result of `future`, which another thread sets within `seconds`. A signal ends the wait.

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


def on_thread(work: Callable[[], T]) -> Future[T]:
    """Start `work` on a daemon thread, which does not keep the process alive."""
    done: Future[T] = Future()

    def target() -> None:
        try:
            with boundary(OrlError, "a bug in orl"):
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
        loop = runner.get_loop()
        loop.set_default_executor(_Executor())

        async def cancellable() -> T:
            task = cast("asyncio.Task[Any]", asyncio.current_task())

            def cancel() -> None:
                with suppress(RuntimeError):  # the loop is closed: the work is done
                    loop.call_soon_threadsafe(_cancel, task)

            with notified(cancel):
                return await work

        try:
            done = runner.run(cancellable())
        except asyncio.CancelledError:
            check()
            raise
    check()
    return done


def _cancel(task: asyncio.Task[Any]) -> None:
    _listener.leave()
    task.cancel()


class _Executor(ThreadPoolExecutor):
    """Waits for its threads at the end, unless a signal came."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait and not received(), cancel_futures=cancel_futures or received())


def _forget_in_child() -> None:
    """Give a forked child the handlers that this process began with: its signals are not ours."""
    global _listener
    listener, _listener = _listener, Listener()
    listener.forget()


os.register_at_fork(after_in_child=_forget_in_child)
