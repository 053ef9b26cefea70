"""`orl train` on a Ray cluster over two machines, which share a folder: runs that start, and accidents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.conftest import LACKING, SHARED, VALUE, Cluster, write_run

pytestmark = pytest.mark.nodes
PROXY = {"http_proxy": "http://10.77.0.9:3128", "no_proxy": "internal.example"}  # there is none


@pytest.fixture
def folder(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    return cluster.shared / request.node.name.replace("/", "_")


def seen(folder: Path) -> dict[str, Any]:
    """Return the environment that the trainer was given."""
    return json.loads((folder / "runs/run/seen.json").read_text(encoding="utf-8"))["environment"]


def refused(cluster: Cluster, folder: Path, *more: str, variables: dict[str, str] | None = None) -> str:
    """The error of a run that does not start its trainer."""
    code, told = cluster.train(folder, *more, variables=variables)
    assert code == 1, told
    assert not (folder / "runs/run/seen.json").exists()
    return told


@pytest.mark.parametrize("form", ["{}:6379", "http://{}:8265"])
def test_run_starts_if_both_nodes_have_everything(cluster: Cluster, folder: Path, server: Any, form: str):
    server(cluster.first, "10.77.0.1", port := 8080 + len(form))
    write_run(folder, url=f"http://10.77.0.1:{port}")
    code, told = cluster.train(folder, variables={"RAY_ADDRESS": form.format(cluster.first.address)})
    assert code == 0, told
    assert "GPUs and the run needs" not in told
    assert seen(folder)["RAY_ADDRESS"] == cluster.address
    assert VALUE not in json.dumps(seen(folder)["RAY_JOB_CONFIG_JSON_ENV_VAR"])


def test_secret_that_one_node_lacks_is_named(cluster: Cluster, folder: Path):
    told = refused(cluster, write_run(folder, secret=LACKING))
    assert f"node {cluster.second.address} has no {LACKING}" in told
    assert f"`{LACKING}=... ray start --address={cluster.address}`" in told
    assert f"node {cluster.first.address}" not in told
    assert SHARED not in told
    assert VALUE not in told


def test_run_folder_that_one_node_lacks_is_named(cluster: Cluster):
    told = refused(cluster, folder := write_run(cluster.private / "run"))
    assert f"node {cluster.second.address} does not see {folder / 'runs/run'}" in told
    assert f"node {cluster.first.address}" not in told


@pytest.mark.parametrize("option", ["--model", "--task-data"])
def test_file_that_one_node_lacks_is_named(cluster: Cluster, folder: Path, option: str):
    here = write_run(cluster.private / option.strip("-"))
    lacking = here / {"--model": "model", "--task-data": "tasks.jsonl"}[option]
    told = refused(cluster, write_run(folder), option, str(lacking))
    assert f"node {cluster.second.address} does not see {lacking}" in told


def test_module_that_one_node_lacks_is_named(cluster: Cluster, folder: Path):
    """A link whose target is on the first node alone."""
    write_run(folder, "reward: scoring:score")
    (cluster.private / "scoring.py").write_text("def score(trajectory): return 1.0\n", encoding="utf-8")
    (folder / "scoring.py").symlink_to(cluster.private / "scoring.py")
    told = refused(cluster, folder)
    assert f"node {cluster.second.address} does not see {folder / 'scoring.py'}" in told


def test_server_on_a_loopback_is_refused(cluster: Cluster, folder: Path, server: Any):
    server(cluster.first, "127.0.0.1", 8181)
    told = refused(cluster, write_run(folder, url="http://127.0.0.1:8181"))
    assert f"node {cluster.second.address} does not reach http://127.0.0.1:8181" in told
    assert "`base_url`" in told
    assert f"node {cluster.first.address}" not in told


def test_server_on_every_loopback_is_accepted(cluster: Cluster, folder: Path, server: Any):
    for machine in (cluster.first, cluster.second):
        server(machine, "127.0.0.1", 8282)
    code, told = cluster.train(write_run(folder, url="http://127.0.0.1:8282"))
    assert code == 0, told


def test_run_starts_on_the_second_node_too(cluster: Cluster, folder: Path):
    code, told = cluster.train(write_run(folder), on=cluster.second)
    assert code == 0, told


def test_nodes_of_miles_are_reached_without_a_proxy(cluster: Cluster, folder: Path):
    code, told = cluster.train(write_run(folder), trainer="miles", variables=PROXY)
    assert code == 0, told
    given = seen(folder)
    workers = json.loads(given["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]["env_vars"]
    hosts = given["no_proxy"].split(",")
    assert {cluster.first.address, cluster.second.address, "internal.example"} <= set(hosts)
    assert workers["no_proxy"] == given["no_proxy"]


def test_address_without_a_cluster_is_refused(cluster: Cluster, folder: Path):
    told = refused(cluster, write_run(folder), variables={"RAY_ADDRESS": "10.77.0.9:6379"})
    assert "RAY_ADDRESS=10.77.0.9:6379: no cluster answers there" in told


def test_run_without_the_clusters_token_is_refused(cluster: Cluster, folder: Path):
    told = refused(cluster, write_run(folder), variables={"RAY_AUTH_MODE": "disabled"})
    assert f"RAY_ADDRESS={cluster.address}: " in told
    assert "RAY_AUTH_TOKEN" in told
