"""The playground's server: the real OpenReward server over its environments, on loopback, and a way to borrow one.

It must not know who trains. `python -m orl_playground.server` serves until a SIGTERM comes. With `--owned` it also ends
if its standard input closes, so that a parent that dies leaves none behind. A shell's `&`, nohup and docker close it,
too. It is a process of its own, to not share an interpreter with a model.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    import uvicorn

ENVIRONMENTS = ("guessnumber", "guesswider")
LISTENING = "listening on "
START_SECONDS = 60.0
STOP_SECONDS = 5.0
POLL_SECONDS = 0.1
MOST_PROCESSES = 4


class ServerError(RuntimeError):
    """The server did not start; the message ends with what it wrote to its standard error."""


@contextmanager
def serving(
    *, processes: int = 1, start_seconds: float = START_SECONDS, check: Callable[[], None] | None = None
) -> Iterator[list[str]]:
    """Serve the environments in child processes, each on a free loopback port, and yield their base URLs.

    `check` is called now and then until all children are ready; it may raise to end the wait. The children are ended on
    every way out. Raises ServerError if one is not ready within `start_seconds`.
    """
    command = [sys.executable, "-m", "orl_playground.server", "--owned"]
    deadline = time.monotonic() + start_seconds
    with ExitStack() as stack:
        children = [stack.enter_context(_running(command)) for _ in range(processes)]
        stack.callback(lambda: [child.terminate() for child, _ in children])
        yield [_address(*child, deadline, check) for child in children]


def processes_for(cores: int | None) -> int:
    """Return how many processes keep up with one trainer's rollouts on a machine of so many `cores`."""
    return max(1, min(MOST_PROCESSES, (cores or 1) // 4))


@contextmanager
def _running(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Run a child, and yield it with its standard error. End it."""
    with tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C reaches the parent, which closes its environments' sessions first.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            yield child, errors
        finally:
            _end(child)


def _address(
    child: subprocess.Popen[bytes], errors: IO[bytes], deadline: float, check: Callable[[], None] | None
) -> str:
    """The URL in the child's one line, awaited until `deadline`."""
    output = cast("IO[bytes]", child.stdout)
    written = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while not written.endswith(b"\n"):
            ready = selector.select(POLL_SECONDS)
            if check is not None:
                check()
            if not ready and time.monotonic() < deadline:
                continue
            chunk = os.read(output.fileno(), 4096) if ready else b""
            if not chunk:
                what = "ended before it was ready" if ready else "was not ready in time"
                _end(child)
                errors.seek(0)
                raise ServerError(f"the playground's server {what}: {errors.read()[-4000:].decode(errors='replace')}")
            written += chunk
    return written.decode().strip().removeprefix(LISTENING)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child: politely, then for certain."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM comes; print one line when ready."""
    parser = argparse.ArgumentParser(
        prog="python -m orl_playground.server", description="Serve the playground's environments on 127.0.0.1."
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--owned", action="store_true", help="end when standard input closes, as a parent's death does")
    chosen = parser.parse_args(arguments)
    running: list[uvicorn.Server] = []
    if chosen.owned:  # before the imports, which take seconds
        threading.Thread(target=_end_with_input, args=(running,), name="stdin", daemon=True).start()
    os.environ.setdefault("OPENREWARD_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", chosen.port))
        _serve(listener, running)


def _end_with_input(running: list[uvicorn.Server]) -> None:
    """End this process when standard input closes: politely where the server runs, at once before that."""
    while os.read(0, 4096):
        pass
    if not running:
        os._exit(0)
    running[0].should_exit = True


def _serve(listener: socket.socket, running: list[uvicorn.Server]) -> None:
    import uvicorn
    from openreward.environments import Server

    from orl_playground.guess_number import GuessNumber, GuessWider

    address = f"http://127.0.0.1:{listener.getsockname()[1]}"

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"{LISTENING}{address}", flush=True)
            # Whatever is printed later goes to stderr: nobody reads the pipe any more, and a full one would block.
            os.dup2(2, 1)

    config = uvicorn.Config(
        Server([GuessNumber, GuessWider]).app,
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=1,
        # A trainer calls in bursts with pauses between them: no connection may close while a call is on its way.
        timeout_keep_alive=75,
    )
    running.append(Announcing(config))
    running[0].run(sockets=[listener])


if __name__ == "__main__":
    main()
