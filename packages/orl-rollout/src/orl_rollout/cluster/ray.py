"""A Ray cluster for one run: the one that is there, or one of its own, closed to others, that ends with the block.

Ray is a command of the trainer's Python here, never imported. Workers inherit the environment that the cluster was
started with, which is how secrets reach them (law L6): none is ever an argument or a runtime environment's text. A
cluster of our own has ports and a folder of its own, so that several runs on one machine do not meet, and is ended by
its process, never by `ray stop`, which ends every cluster of the machine. Ray listens on every interface whatever
address it is given, so a cluster of our own answers to a token alone, made for the run (Ray 2.52 and later).
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orl_core.errors import OrlError

from orl_rollout.cluster.process import end_group

START_SECONDS = 120.0
ADDRESS = "RAY_ADDRESS"
OWN = {"RAY_AUTH_MODE": "token", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # nothing is served when a run ends


@contextmanager
def ray_cluster(python: str, environment: Mapping[str, str], *, gpus: int, log: Path) -> Generator[dict[str, str]]:
    """`environment` with the address of a cluster: of RAY_ADDRESS, where that is set, else of one started here.

    Raises:
        OrlError: the cluster does not start; names the log.
    """
    if environment.get(ADDRESS):
        yield dict(environment)
        return
    own = {**environment, **OWN, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    folder = Path(tempfile.mkdtemp(prefix="orl-ray-"))
    port = _free_port()
    with log.open("ab") as output:
        process = subprocess.Popen(
            _command(python, port, gpus, folder),
            env=own,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _await(process, port, log)
            yield {**own, ADDRESS: f"127.0.0.1:{port}"}
        finally:
            end_group(process)
            shutil.rmtree(folder, ignore_errors=True)


def _command(python: str, port: int, gpus: int, folder: Path) -> list[str]:
    return [
        *(python, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(port), "--num-gpus", str(gpus)),
        *("--ray-client-server-port", str(_free_port()), "--dashboard-agent-listen-port", str(_free_port())),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(folder)),
    ]


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise OrlError(f"Ray ended with exit code {process.returncode} as it started: see {log}")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise OrlError(f"Ray did not start within {START_SECONDS:g} s: see {log}")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def environment_for(python: str, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a trainer of another Python, whose programs come first on PATH."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    own = str(Path(python).parent)
    return {
        **kept,
        "PATH": os.pathsep.join([own, *(folder for folder in os.get_exec_path() if folder != own)]),
        "PYTHONUNBUFFERED": "1",
        **extra,
    }
