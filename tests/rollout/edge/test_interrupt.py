"""A signal is never lost, wherever it arrives, and the caller's handlers come back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from orl_rollout.edge import children, interrupt
from orl_rollout.edge.files import replace, write_new
from orl_rollout.run_folder.summary import Summary, SummaryFile

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_inside_a_weakref_callback_is_not_lost(number: signal.Signals) -> None:
    class Thing:
        pass

    called: list[bool] = []

    def callback(_: object) -> None:
        send(number)
        for _ in range(1000):  # the handler runs here, where Python drops exceptions
            pass
        called.append(True)

    with interrupt.listening() as signals:
        thing = Thing()
        kept = weakref.ref(thing, callback)
        del thing
        assert kept() is None
        assert called == [True]
        with pytest.raises(interrupt.Interrupted):
            interrupt.check()
        with pytest.raises(interrupt.Interrupted):
            interrupt.check()  # and again, where somebody swallowed it
    assert signals.exit_code(0) == 128 + number


def test_the_handlers_of_the_caller_come_back() -> None:
    def own(_number: int, _frame: object) -> None:
        raise AssertionError

    before = [signal.signal(number, own) for number in ENDINGS]
    try:
        with interrupt.listening():
            assert all(signal.getsignal(number) is not own for number in ENDINGS)
            send(signal.SIGTERM)
        assert all(signal.getsignal(number) is own for number in ENDINGS)
    finally:
        for number, kept in zip(ENDINGS, before, strict=True):
            signal.signal(number, kept)


def test_what_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.listening() as signals:
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            interrupt.check()
        assert signals.exit_code(0) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_held_work_is_finished_first() -> None:
    with interrupt.listening():
        with interrupt.held():
            send(signal.SIGTERM)
            interrupt.check()
        with pytest.raises(interrupt.Interrupted):
            interrupt.check()


def test_a_wait_for_another_thread_ends_with_a_signal() -> None:
    never: Future[None] = Future()
    with interrupt.listening():
        threading.Timer(0.05, send, (signal.SIGTERM,)).start()
        with pytest.raises(interrupt.Interrupted):
            interrupt.result_of(never)


def test_work_on_a_loop_is_cancelled_and_cleans_up() -> None:
    cleaned: list[bool] = []

    async def work() -> None:
        try:
            send(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with interrupt.listening(), pytest.raises(interrupt.Interrupted):
        interrupt.run(work())
    assert cleaned == [True]


def test_a_stuck_thread_of_a_loop_is_left_behind() -> None:
    free = threading.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.05, send, signal.SIGTERM)
        await asyncio.to_thread(free.wait)

    try:
        with interrupt.listening(), pytest.raises(interrupt.Interrupted):
            interrupt.run(work())
        assert not free.is_set()
    finally:
        free.set()


def test_signals_that_are_close_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell, `uv run` and the terminal may each pass the same Ctrl-C on."""
    monkeypatch.setattr(interrupt, "SAME_SECONDS", 60.0)  # a busy machine may pass them on late
    with interrupt.listening() as signals:
        for _ in range(5):
            send(signal.SIGINT)
            time.sleep(0.01)
        until(lambda: interrupt.count() > 0)
        assert interrupt.count() == 1
    assert signals.exit_code(0) == 130


def test_a_child_and_its_own_children_end_with_a_signal(tmp_path: Path) -> None:
    began = tmp_path / "began"
    grandchild = f"import pathlib, os, time; pathlib.Path({str(began)!r}).write_text(str(os.getpid())); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"

    def signal_when_it_began() -> None:
        until(lambda: began.is_file() and bool(began.read_text()))
        send(signal.SIGTERM)

    with interrupt.listening():
        threading.Thread(target=signal_when_it_began).start()
        with pytest.raises(interrupt.Interrupted):
            children.run([sys.executable, "-c", program], timeout=60)
    until(lambda: gone(int(began.read_text())))


def test_a_child_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        children.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


FORCED = """
import os, signal, sys, threading, time
from orl_rollout.edge import interrupt
interrupt.FIRST_SECONDS = interrupt.AGAIN_SECONDS = 0.1
def busy(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass  # no check
with interrupt.listening(), interrupt.notified(lambda: os.write(1, b"told\\n")):
    with interrupt.released(lambda: os.write(1, b"released\\n")), interrupt.{stage}():
        print("ready", flush=True)
        busy(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "needed"), [("listening", 1), ("patient", 2), ("held", 3)])
def test_a_process_that_comes_to_no_check_ends_by_force(stage: str, needed: int) -> None:
    """The first signal suffices if nothing must be saved, the second in training, the third while saving."""
    started = subprocess.Popen([sys.executable, "-c", FORCED.format(stage=stage)], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    for _ in range(needed - 1):
        started.send_signal(signal.SIGTERM)
        assert started.stdout.readline() == "told\n"
        time.sleep(0.4)  # longer than signals that count as one
        assert started.poll() is None
    started.send_signal(signal.SIGTERM)
    told, _ = started.communicate(timeout=20)
    assert started.returncode == 143
    assert sorted(told.split()) == ["released", "told"]  # on a busy machine in either order


FORKING = """
import os, signal
from orl_rollout.edge import interrupt
with interrupt.listening() as signals:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b".")
        signal.pause()
        os._exit(0)
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    interrupt.check()
assert signals.exit_code(0) == 0
"""


def test_a_forked_child_does_not_share_the_signals() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_summary_is_written_at_signal_and_again_at_end(tmp_path: Path) -> None:
    summary = SummaryFile(tmp_path, lambda: Summary(env="a/b", model=None, steps=1, seed=0))
    summary.interrupted()
    assert b'"interrupted": true' in (tmp_path / "summary.json").read_bytes()
    summary.end({})
    summary.interrupted()
    assert b"interrupted" not in (tmp_path / "summary.json").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_file_is_replaced_or_made_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_new(path, b"one")
    with pytest.raises(FileExistsError):
        write_new(path, b"two")
    assert path.read_bytes() == b"one"
    replace(path, b"three")
    assert path.read_bytes() == b"three"
    assert [other.name for other in tmp_path.iterdir()] == ["file"]
