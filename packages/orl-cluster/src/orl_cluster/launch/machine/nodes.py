"""Ask every node of a Ray cluster for its GPUs, variables by name, package, files, and servers that it reaches.

Ray is in the trainer's Python, which runs this module: `-m orl_cluster.launch.machine.nodes ANSWER NEEDS`. What a node
runs is sent there whole, because orl may be missing on it. A value never leaves its node (L6).
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from orl_core.errors import OrlError, boundary

from orl_cluster.launch.machine.probe import answer_of
from orl_cluster.launch.machine.required_env import RequiredEnv

NODE_SECONDS = 60.0  # for all nodes together to start a worker and answer
ASK_SECONDS = 180.0
REACH_SECONDS = 5.0
HEAD = "node:__internal_head__"  # a resource that Ray gives to the head alone


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node's answer: `variables` are set there, `has_package` tells whether it has the package, `why` what failed.

    `absent` are the paths that are not there, `unreached` the URLs that do not answer it.
    """

    address: str
    head: bool
    variables: tuple[str, ...] = ()
    has_package: bool = True
    absent: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    gpus: int = 0
    why: str = ""


def ask(python: str, environment: Mapping[str, str], needs: RequiredEnv) -> list[Node]:
    """Return the answers of the nodes of the cluster at RAY_ADDRESS of `environment`."""
    arguments = [msgspec.json.encode(needs).decode()]
    written = answer_of(python, "orl_cluster.launch.machine.nodes", arguments, environment, seconds=ASK_SECONDS)
    return msgspec.json.decode(written, type=list[Node])


def look(package: str, names: Sequence[str], paths: Sequence[str], addresses: Sequence[str]) -> dict[str, Any]:
    """Return, in a worker, the fields of its Node that are about `package`, `names`, `paths` and `addresses`."""
    return {
        "variables": tuple(name for name in names if os.environ.get(name)),
        "has_package": not package or find_spec(package) is not None,
        "absent": tuple(path for path in paths if not os.access(path, os.R_OK)),
        "unreached": tuple(address for address in addresses if not reaches(address)),
    }


def reaches(address: str) -> bool:
    """Tell whether something listens at the URL `address`, as seen from this machine."""
    url = urlsplit(address)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection((url.hostname or "", port), REACH_SECONDS).close()
    except OSError:
        return False
    return True


def answers(needs: RequiredEnv) -> list[Node]:
    """Let every living node look, all at once."""
    ray: Any = importlib.import_module("ray")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    living = [node for node in ray.nodes() if node["Alive"]]
    tasks = [
        ray.remote(look)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(id_, soft=False)
        )
        .remote(needs.package, needs.names, needs.paths, needs.addresses)
        for id_ in (node["NodeID"] for node in living)
    ]
    done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=NODE_SECONDS)
    rows = [_node(ray, node, task if task in done else None) for node, task in zip(living, tasks, strict=True)]
    ray.shutdown()
    return rows


def _node(ray: Any, node: dict[str, Any], task: Any) -> Node:
    resources = node["Resources"]
    where: dict[str, Any] = {
        "address": node["NodeManagerAddress"],
        "head": HEAD in resources,
        "gpus": int(resources.get("GPU", 0)),
    }
    if task is None:
        return Node(**where, why=f"it did not answer within {NODE_SECONDS:g} s")
    try:
        with boundary(OrlError, "it took no work"):
            seen = ray.get(task)
    except OrlError as exc:
        return Node(**where, why=" ".join(str(exc).split())[:400])
    return Node(**where, **seen)


def main(argv: Sequence[str]) -> None:
    """Write the answers to the file named first."""
    Path(argv[0]).write_bytes(msgspec.json.encode(answers(msgspec.json.decode(argv[1], type=RequiredEnv))))


if __name__ == "__main__":
    main(sys.argv[1:])
