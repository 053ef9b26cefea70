"""Finds the Ray cluster that a run joins: that of RAY_ADDRESS, else the one that runs on this machine.

A cluster is found as `ray status` finds it, by the command lines of its raylets. Only clusters of this user count.
Those that orl started for other runs do not: each ends with its run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from orl_core.errors import ConfigError

ADDRESS = "RAY_ADDRESS"
NONE = "local"  # value of RAY_ADDRESS, by Ray's own convention: start a cluster
OWN_FOLDER = "orl-ray-"  # begins the name of the folder of a cluster that orl starts
PORT = 6379  # Ray's own, of a cluster that the user starts
_FLAG = "--gcs-address="
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def ray_address(environment: Mapping[str, str]) -> str:
    """Return the address of the cluster to join; "" if the run starts its own.

    The `http://` form of RAY_ADDRESS names the dashboard. Here it stands for the cluster that runs on this machine, or
    for Ray's own port on another one.

    Raises:
        ConfigError: several clusters run on this machine.
    """
    given = environment.get(ADDRESS, "")
    dashboard = urlsplit(given) if given.startswith(("http://", "https://")) else None
    if given == NONE:
        return ""
    if given and not dashboard:
        return given
    if dashboard and dashboard.hostname not in _LOOPBACK:
        return f"{dashboard.hostname}:{PORT}"
    found = sorted(set(_running()))
    if len(found) > 1:
        raise ConfigError(
            f"Ray clusters run at {', '.join(found)}. Set {ADDRESS} to one of them, or to {NONE} for none"
        )
    return next(iter(found), "")


def _running() -> Iterator[str]:
    """Yield the addresses of the clusters that run on this machine."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile, or is of another user
            words = process.cmdline()
            if not words or not Path(words[0]).name.startswith("raylet") or process.uids().real != os.getuid():
                continue
            if not any(OWN_FOLDER in word for word in words):
                yield from (word.removeprefix(_FLAG) for word in words if word.startswith(_FLAG))
