"""A Ray cluster over two machines, started by the commands that `orl train --dry-run` prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import Struct
from orl_cluster.launch.machine.ray_cluster import OWN_FOLDER, environment_for

from tests.nodes.machines import SECONDS, Machine, two_machines
from tests.two_pythons.environment import make_environment
from tests.two_pythons.planning import MACHINE

SHARED, LACKING = "ORL_TEST_SHARED", "ORL_TEST_LACKING"  # secrets: of both nodes, of the first one alone
VALUE = "hush-hush-4b1d"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
ORL = [sys.executable, "-c", "import sys; from orl_launcher.main import main; sys.exit(main(sys.argv[1:]))"]
FEW = ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
NODES = "import ray; ray.init(log_to_driver=False); print(sum(node['Alive'] for node in ray.nodes()))"


class Cluster(Struct, frozen=True):
    """Two machines, the Python of the trainers on them, a folder that both see, and one that the first one sees."""

    first: Machine
    second: Machine
    python: str
    shared: Path
    private: Path

    @property
    def address(self) -> str:
        return f"{self.first.address}:6379"

    def train(
        self,
        folder: Path,
        *more: str,
        trainer: str = "slime",
        on: Machine | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Run `orl train` in `folder`, with the secrets of the first machine. Return exit code and errors."""
        given = {"RAY_ADDRESS": self.address, SHARED: VALUE, LACKING: VALUE, **TOKEN, **(variables or {})}
        words = [*ORL, "train", trainer, "--python", self.python, "--name", "run", *TWO_NODES, *more]
        code, _, told = (on or self.first).run(words, environment(**given), folder)
        return code, told


TWO_NODES = ["--config", "config.yaml", "--task-data", "tasks.jsonl", "--model", "model"]
TWO_NODES += ["--actor-nodes", "2", "--num-gpus", "1", "--model-args", "qwen3-0.6B"]


def environment(**variables: str) -> dict[str, str]:
    """A clean one, which sees no cluster, proxy or secret of this machine's own."""
    hidden = (*MACHINE, "RAY_ADDRESS", *TOKEN)
    kept = environment_for(sys.executable, {"STAND_IN_GPUS": "1"})
    return {name: value for name, value in kept.items() if name not in hidden} | variables


def write_run(folder: Path, *more: str, secret: str = SHARED, url: str = "http://10.77.0.1:8080") -> Path:
    """Write model, tasks and configuration of a run into `folder`, and return it."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    (folder / "tasks.jsonl").write_text('{"prompt": "?", "label": ""}\n', encoding="utf-8")
    lines = [f"environments: {{Org/Env: {{base_url: '{url}'}}}}", f"secrets: {{{secret}: null}}", *more]
    (folder / "config.yaml").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with tempfile.TemporaryDirectory(prefix="orl-nodes-", ignore_cleanup_errors=True) as made:
        base = Path(made)
        private, shared = base / "private", base / "shared"
        private.mkdir()
        python = str(make_environment(base / "env", "slime", "miles", real_ray=True))
        with two_machines(private) as (first, second):
            cluster = Cluster(first, second, python, shared, private)
            _start(cluster)
            yield cluster


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Callable[[Machine, str, int], None]:
    """Serve HTTP on a machine, at an address and port of it."""

    def serve(machine: Machine, address: str, port: int) -> None:
        served = [sys.executable, "-m", "http.server", "--bind", address, "--directory", str(tmp_path), str(port)]
        machine.start(served, environment(), tmp_path / "server.log")
        asked = ["import socket", f"socket.create_connection(('{address}', {port}), 1)"]
        _await(lambda: machine.run([sys.executable, "-c", "; ".join(asked)], environment(), tmp_path)[0] == 0)

    return serve


def _start(cluster: Cluster) -> None:
    """Start Ray on both machines, as a dry run says. Its folder is one that no run of another test joins."""
    folder = write_run(cluster.shared / "printed")
    words = [*ORL, "train", "slime", "--dry-run", "--python", cluster.python, *TWO_NODES]
    code, shown, told = cluster.first.run(words, environment(RAY_ADDRESS="local", **{SHARED: VALUE}), folder)
    assert code == 1, told
    head, other = (shlex.split(line) for line in re.findall(r"`([^`]* ray start [^`]*)`", shown.replace("\n# ", " ")))
    assert [head[0], other[0]] == [f"{SHARED}=...", f"{SHARED}=..."]
    ray = [cluster.python, "-m", "ray.scripts.scripts"]
    session = tempfile.mkdtemp(prefix=OWN_FOLDER, dir=folder.parent.parent)
    first = [*ray, *head[2:], *FEW, "--include-dashboard=false", f"--temp-dir={session}"]
    second = [*ray, *(word.replace("FIRST", cluster.first.address) for word in other[2:]), *FEW]
    secrets = {SHARED: VALUE, LACKING: VALUE}
    started = cluster.first.start(first, environment(**secrets, **TOKEN), cluster.shared / "first.log")
    _await(lambda: _nodes(cluster, started) == 1)
    started = cluster.second.start(second, environment(**{SHARED: VALUE}, **TOKEN), cluster.shared / "second.log")
    _await(lambda: _nodes(cluster, started) == 2)


def _nodes(cluster: Cluster, started: subprocess.Popen[bytes]) -> int:
    assert started.poll() is None, "".join(log.read_text("utf-8") for log in sorted(cluster.shared.glob("*.log")))
    given = environment(RAY_ADDRESS=cluster.address, **TOKEN)
    code, said, _ = cluster.first.run([cluster.python, "-c", NODES], given, cluster.shared)
    return int(said.split()[-1]) if code == 0 else 0


def _await(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.2)
