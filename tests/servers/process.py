"""A server of environments in a process of its own, with the SDK of a virtual environment of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 180.0  # a cold import of an SDK takes many seconds


def installed(folder: Path, packages: Sequence[str], *, inside: Path | None = None) -> Path:
    """Install `packages`, words of `uv pip install`, into a new virtual environment. Return its Python."""
    uv = shutil.which("uv")
    assert uv, "uv is not on PATH"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True, cwd=inside)
    return python


@contextmanager
def serving(command: Sequence[str], log: Path, **variables: str) -> Generator[str]:
    """Run `command` until the block ends. Yield the address that it prints; `log` is what it writes to stderr.

    Raises:
        RuntimeError: it prints no address.
    """
    environment = {**os.environ, "OPENREWARD_DISABLE_UPDATE_CHECK": "1", **variables}
    with (
        log.open("w") as lines,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=lines, text=True, env=environment, start_new_session=True
        ) as process,
    ):
        overdue = threading.Timer(START_SECONDS, process.kill)
        overdue.start()
        assert process.stdout is not None
        try:
            url = next((line.strip() for line in process.stdout if line.startswith("http")), "")
            overdue.cancel()
            if not url:
                raise RuntimeError(f"{' '.join(command)} does not serve: {log.read_text('utf-8')[-2000:]}")
            # An environment may print on and on; a full pipe would stop it.
            drain = threading.Thread(target=lambda: any(False for _ in process.stdout or ()), daemon=True)
            drain.start()
            yield url
        finally:
            overdue.cancel()
            process.terminate()
            process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # processes of the environment's own, which would hold the pipe
