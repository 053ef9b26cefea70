"""A Ray cluster for a run: the one that RAY_ADDRESS names, or a closed one that ends with the block.

Ray is a command of the trainer's Python here, never imported. Workers inherit the environment that the cluster was
started with. That is how secrets reach them (law L6): none is ever an argument or part of a runtime environment. The
trainer's own variables hold none: a cluster that others started gets them in the job's runtime environment, as `ray job
submit` hands them over. A node of such a cluster is refused before anything runs if its workers lack a variable, a
package or a file, or do not reach a server that this machine reaches.

The trainer's Python asks the nodes: it runs this module, `-m orl_cluster.launch.machine.ray_cluster ANSWER NEEDS`. What
a node runs is sent there whole, because orl may be missing on it. A value never leaves its node (L6).

A cluster of our own has ports and a folder of its own, so that several runs on one machine do not meet, and is ended by
its process, never by `ray stop`, which ends every cluster of the machine. Ray listens on every interface whatever
address it is given, so a cluster of our own answers to a token alone, made for the run (Ray 2.52 and later).
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.edge.children import free_port, running
from orl_rollout.logs import logger_of

from orl_cluster.launch.machine.probe import answer_of
from orl_cluster.launch.machine.required_env import RequiredEnv

logger = logger_of("orl")

ADDRESS, PORT = "RAY_ADDRESS", 6379
NONE = "local"  # value of RAY_ADDRESS, by Ray's own convention: start a cluster
OWN_FOLDER = "orl-ray-"  # begins the name of the folder of a cluster that orl starts
START_SECONDS, CONNECT_SECONDS = 120.0, 10.0
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
OWN = {MODE: "token", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # nothing is served when a run ends
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # by which `ray job submit` hands a runtime environment over
CLOSABLE = (2, 52)  # the first Ray that knows the token
NODE_SECONDS = 60.0  # for all nodes together to start a worker and answer
REACH_SECONDS = 5.0
HEAD = "node:__internal_head__"  # a resource that Ray gives to the head alone


def ray_address(environment: Mapping[str, str]) -> str:
    """Return the address of the cluster that RAY_ADDRESS names; "" if the run starts its own.

    The `http://` form names the dashboard: then the cluster has Ray's own port on the same machine.
    """
    address = environment.get(ADDRESS, "")
    if address.startswith(("http://", "https://")):
        return f"{urlsplit(address).hostname}:{PORT}"
    return "" if address == NONE else address


@contextmanager
def ray_cluster(
    python: str, environment: Mapping[str, str], *, gpus: int, log: Path, needs: RequiredEnv
) -> Generator[dict[str, str]]:
    """Yield `environment` with the address of a cluster: of the one that it names, else of one started here."""
    if address := ray_address(environment):
        needs = structs.replace(needs, addresses=tuple(filter(reaches, needs.addresses)))
        joined = {**environment, ADDRESS: address, JOB: _job(environment, needs)}
        needs = _unproxied(needs, _ready(python, joined, needs, address))
        yield {**joined, **needs.settings, JOB: _job(environment, needs)}
        return
    own = {**environment, **OWN, TOKEN: secrets.token_hex(32)}
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix=OWN_FOLDER, ignore_cleanup_errors=True) as folder,
        running(_command(python, port, gpus, folder), own, log=log, hidden=needs.names) as process,
    ):
        _await(process, port, log)
        yield {**own, ADDRESS: f"127.0.0.1:{port}"}


def _job(environment: Mapping[str, str], needs: RequiredEnv) -> str:
    """Return the job's configuration: the user's own of `ray job submit`, with the variables of workers."""
    job: dict[str, Any] = msgspec.json.decode(environment.get(JOB) or "{}")
    runtime: dict[str, Any] = job.get("runtime_env") or {}
    path = {name: environment[name] for name in ("PYTHONPATH",) if environment.get(name)}
    own: dict[str, str] = runtime.get("env_vars") or {}
    variables = {**own, **path, **needs.settings}
    return msgspec.json.encode({**job, "runtime_env": {**runtime, "env_vars": variables}}).decode()


def _unproxied(needs: RequiredEnv, answers: Sequence[Node]) -> RequiredEnv:
    """Return `needs` whose `no_proxy`, if a trainer has that setting, names all nodes: their engines are called."""
    excepted = needs.settings.get("no_proxy", "*")
    if excepted == "*":
        return needs
    hosts = dict.fromkeys([*excepted.split(","), *(node.address for node in answers)])
    return structs.replace(needs, settings={**needs.settings, "no_proxy": ",".join(hosts)})


def several_nodes(nodes: int, gpus: int, needs: RequiredEnv) -> str:
    """Return the commands that start a cluster of several nodes, with `gpus` GPUs each, in one line."""
    start = f"{needs.assignments()}ray start --num-gpus={gpus}"
    return (
        f"the run needs {needs.gpus} GPUs, {gpus} on a node. Ask for fewer, or start a Ray cluster of {nodes} nodes: "
        f"on the first `{start} --head --port={PORT}`, on every other `{start} --address=FIRST:{PORT}`, then on the "
        f"first `RAY_ADDRESS=FIRST:{PORT} orl train ...`"
    )


def unclosable(version: str) -> list[str]:
    """Return why a cluster of our own would be open to others: a Ray that does not know the token. Else empty."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) >= CLOSABLE:
        return []
    return [
        f"Ray {version} would let everyone on the network command the run's cluster: install Ray "
        f"{CLOSABLE[0]}.{CLOSABLE[1]} or later, or start a cluster yourself and set {ADDRESS}"
    ]


def _ready(python: str, environment: Mapping[str, str], needs: RequiredEnv, address: str) -> list[Node]:
    """Return the nodes of the cluster at `address`."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():  # Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except OSError as exc:
            raise ConfigError(f"{ADDRESS}={address}: no cluster answers there: {exc}") from exc
    try:
        answers = ask(python, environment, needs)
    except ConfigError as exc:
        token = f". Does it need a token? Set {MODE}=token and {TOKEN}" if "ConnectionError" in str(exc) else ""
        raise ConfigError(f"{ADDRESS}={address}: {exc}{token}") from exc
    problems = [problem for node in answers if (problem := problem_of(node, needs, address))]
    if problems:
        raise ConfigError(
            f"{ADDRESS}={address}: {'; '.join(problems)}; or set {ADDRESS}={NONE} for a cluster of the run's own"
        )
    there = sum(node.gpus for node in answers)
    if there < needs.gpus:
        start = f"{needs.assignments()}ray start --address={address}"
        logger.warning(
            "the cluster at %s has %d GPUs and the run needs %d: it waits until nodes with the missing ones join: `%s`",
            *(address, there, needs.gpus, start),
        )
    return answers


def problem_of(node: Node, needs: RequiredEnv, address: str) -> str:
    """Return what keeps workers on `node` from playing, and what to do; "" if nothing does."""
    if node.why:
        return f"node {node.address}: {node.why}"
    if not node.has_package:
        return f"node {node.address} does not find {needs.package}: bring orl to its Python (orl install-into)"
    if node.absent:
        absent = ", ".join(node.absent)
        return f"node {node.address} does not see {absent}: all nodes need it at one path, on a shared file system"
    if node.unreached:
        urls = ", ".join(node.unreached)
        return (
            f"node {node.address} does not reach {urls}, as this machine does: give a `base_url` that all nodes reach"
        )
    missing = needs.missing(node.variables)
    if not missing:
        return ""
    start = f"{needs.assignments(node.variables)}ray start {'--head' if node.head else f'--address={address}'}"
    return f"node {node.address} has no {', '.join(missing)}: start Ray there with it in the environment, `{start}`"


def _command(python: str, port: int, gpus: int, folder: str) -> list[str]:
    return [
        *(python, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(port), "--num-gpus", str(gpus)),
        *("--ray-client-server-port", str(free_port()), "--dashboard-agent-listen-port", str(free_port())),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", folder),
    ]


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends:
        interrupt.check()
        if process.poll() is not None:
            raise OrlError(f"Ray ended with exit code {process.returncode} as it started: see {log}")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise OrlError(f"Ray did not start within {START_SECONDS:g} s: see {log}")


def environment_for(python: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a trainer of another Python, whose programs come first on PATH."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    own = str(Path(python).parent)
    return {
        **kept,
        "PATH": os.pathsep.join([own, *(folder for folder in os.get_exec_path() if folder != own)]),
        "PYTHONUNBUFFERED": "1",
        # Under `uv run`, as every recipe is, Ray would start the workers in uv's environment, which has no trainer.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        **extra,
    }


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
    written = answer_of(python, "orl_cluster.launch.machine.ray_cluster", arguments, environment)
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


def looked(needs: RequiredEnv) -> list[Node]:
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
    Path(argv[0]).write_bytes(msgspec.json.encode(looked(msgspec.json.decode(argv[1], type=RequiredEnv))))


if __name__ == "__main__":
    main(sys.argv[1:])
