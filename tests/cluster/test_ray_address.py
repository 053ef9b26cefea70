"""A run joins the cluster of RAY_ADDRESS, else the one that runs on this machine, else none."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from orl_cluster.launch.ray_address import OWN_FOLDER, ray_address
from orl_core.errors import ConfigError

PORTS = 61001, 61002, 61003


@pytest.fixture(autouse=True)
def alone() -> Generator[None]:
    """Let one test at a time have raylets: every process of this machine sees them."""
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def raylet(port: int, folder: str = "/tmp/ray") -> Generator[None]:
    """A process with the command line of a raylet."""
    words = ["raylet", "-c", "echo; sleep 60; :", f"--session_dir={folder}", f"--gcs-address=127.0.0.1:{port}"]
    process = subprocess.Popen(words, executable="/bin/sh", start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout
    with process, process.stdout as said:
        assert said.read(1)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def only(ports: tuple[int, ...], address: str) -> bool:
    """Return if `address` is one of ours: other tests may have clusters of their own."""
    return any(address == f"127.0.0.1:{port}" for port in ports)


@pytest.mark.parametrize(
    ("given", "found"),
    [("local", ""), ("10.0.0.7:6379", "10.0.0.7:6379"), ("http://head.example:8265", "head.example:6379")],
)
def test_named_cluster_is_joined(given: str, found: str) -> None:
    assert ray_address({"RAY_ADDRESS": given}) == found


@pytest.mark.parametrize("environment", [{}, {"RAY_ADDRESS": "http://127.0.0.1:8265"}])
def test_running_cluster_is_found(environment: dict[str, str]) -> None:
    with raylet(PORTS[0]), raylet(PORTS[1], f"/tmp/{OWN_FOLDER}x"):
        assert only(PORTS[:1], ray_address(environment))
    assert not only(PORTS, ray_address(environment))


def test_several_clusters_are_refused() -> None:
    with raylet(PORTS[1]), raylet(PORTS[2]), pytest.raises(ConfigError, match=str(PORTS[2])):
        ray_address({})
