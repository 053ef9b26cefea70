"""Asks every node of a Ray cluster for its GPUs, and what its workers have: variables, by name, a package, and files.

Ray lives in the trainer's Python, which runs this module as a program: `-m orl_cluster.launch.nodes ANSWER PACKAGE
NAME... -- PATH...`. What a node runs is sent there whole, because orl may be missing on it. A value never leaves its
node (L6).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.errors import OrlError, boundary

from orl_cluster.launch.probe import answer_of
from orl_cluster.launch.required_env import RequiredEnv

NODE_SECONDS = 60.0  # for all nodes together to start a worker and answer
ASK_SECONDS = 180.0
HEAD = "node:__internal_head__"  # a resource that Ray gives to the head alone


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node's answer: `variables` are set there, `found` tells whether it has the package, `why` what failed.

    `absent` are the paths that are not there.
    """

    address: str
    head: bool
    variables: tuple[str, ...] = ()
    found: bool = True
    absent: tuple[str, ...] = ()
    gpus: int = 0
    why: str = ""


def ask(python: str, environment: Mapping[str, str], needs: RequiredEnv) -> list[Node]:
    """Return the answers of the nodes of the cluster at RAY_ADDRESS of `environment`.

    Raises:
        ConfigError: there is no such cluster, or it takes no work from `python`.
    """
    arguments = [needs.package, *needs.names, "--", *needs.paths]
    found = answer_of(python, "orl_cluster.launch.nodes", arguments, environment, seconds=ASK_SECONDS)
    return msgspec.json.decode(found, type=list[Node])


def look(package: str, names: Sequence[str], paths: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """Return, in a worker, which of `names` are set, whether it finds `package`, and which `paths` it cannot read."""
    there = [name for name in names if os.environ.get(name)]
    return (
        there,
        not package or find_spec(package) is not None,
        [path for path in paths if not os.access(path, os.R_OK)],
    )


def answers(package: str, names: Sequence[str], paths: Sequence[str]) -> list[Node]:
    """Let every living node look, all at once."""
    ray: Any = importlib.import_module("ray")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    living = [node for node in ray.nodes() if node["Alive"]]
    asked = [
        ray.remote(look)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(id_, soft=False)
        )
        .remote(package, names, paths)
        for id_ in (node["NodeID"] for node in living)
    ]
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=NODE_SECONDS)
    found = [_node(ray, node, task if task in done else None) for node, task in zip(living, asked, strict=True)]
    ray.shutdown()
    return found


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
            variables, found, absent = ray.get(task)
    except OrlError as exc:
        return Node(**where, why=" ".join(str(exc).split())[:400])
    return Node(**where, variables=tuple(variables), found=found, absent=tuple(absent))


def main(argv: Sequence[str]) -> None:
    """Write the answers to the file named first."""
    end = argv.index("--")
    Path(argv[0]).write_bytes(msgspec.json.encode(answers(argv[1], argv[2:end], argv[end + 1 :])))


if __name__ == "__main__":
    main(sys.argv[1:])
