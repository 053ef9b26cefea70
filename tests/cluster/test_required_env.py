"""A run joins the cluster that RAY_ADDRESS names, if its workers have what they need, under the names of the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from orl_cluster.launch.command.command import modules_of
from orl_cluster.launch.machine.ray_cluster import Node, problem_of, ray_address
from orl_cluster.launch.machine.required_env import RequiredEnv, needs_of, secrets_in_config
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError
from orl_rollout.edge.secrets import resolve_secrets, unset_in


@pytest.mark.parametrize(
    ("given", "found"),
    [("local", ""), ("10.0.0.7:6379", "10.0.0.7:6379"), ("http://head.example:8265", "head.example:6379")],
)
def test_named_cluster_is_joined(given: str, found: str) -> None:
    assert ray_address({"RAY_ADDRESS": given}) == found
    assert ray_address({}) == ""


def config_of(environments: dict[str, Any], secrets: dict[str, Any] | None = None) -> RunConfig:
    return decode_config({"environments": environments, "secrets": secrets or {}}, "test")


def test_a_secret_is_needed_under_its_name_or_the_upper_case_form(monkeypatch: pytest.MonkeyPatch):
    for name in ("own", "SHOUTED", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "set")
    config = config_of({"a/b": {"secrets": {"own": None, "SHOUTED": None}}}, {"openai_api_key": None})
    needs = needs_of(config, "orl_adapter", tracked=True, settings={})
    assert needs.variables == (
        ("OPENREWARD_API_KEY",),
        ("WANDB_API_KEY",),
        ("openai_api_key", "OPENAI_API_KEY"),
        ("own", "OWN"),
        ("SHOUTED",),
    )
    assert needs.missing({"OPENREWARD_API_KEY", "WANDB_API_KEY", "own", "OPENAI_API_KEY"}) == ["SHOUTED"]
    assert needs.missing({"SHOUTED", "OWN", "own"}) == ["OPENREWARD_API_KEY", "WANDB_API_KEY", "OPENAI_API_KEY"]


@pytest.mark.parametrize(
    ("environment", "needed"),
    [
        ({}, ("OPENREWARD_API_KEY",)),
        ({"base_url": "http://127.0.0.1:1"}, ()),
        ({"base_url": "http://127.0.0.1:1", "send_api_key": True}, ("OPENREWARD_API_KEY",)),
    ],
)
def test_the_platforms_key_is_needed_where_it_is_sent(environment: dict[str, Any], needed: tuple[str, ...]):
    assert needs_of(config_of({"a/b": environment}), "orl_adapter", tracked=False, settings={}).names == needed


def test_addresses_of_environments_are_needed_each_once():
    config = config_of({"a/b": {"base_url": "http://h:1"}, "a/c": {"base_url": "http://h:1"}, "a/d": {}})
    assert needs_of(config, "orl_adapter", tracked=False, settings={}).addresses == ("http://h:1",)


@pytest.mark.parametrize("agent", ["my.agents:play", {"function": "my.agents:play"}])
def test_modules_of_functions_are_in_the_working_folder(agent: Any):
    config = decode_config({"environments": {"a/b": {}}, "reward": "scoring:score", "agent": agent}, "test")
    assert {path.relative_to(Path.cwd()).as_posix() for path in modules_of(config)} == {
        *("scoring", "scoring.py", "my/agents", "my/agents.py")
    }


def test_configured_secrets_use_the_names_read_first():
    hosted = {"value": "three", "hosts": ["x.example"]}
    config = config_of({"a/b": {"secrets": {"own": "two"}}, "a/c": {"secrets": {"hosted": hosted}}}, {"shared": "one"})
    assert secrets_in_config(config) == {"shared": "one", "own": "two", "hosted": "three"}


@pytest.mark.parametrize("other", ["second-one", None])
def test_each_environment_gets_its_own_value(monkeypatch: pytest.MonkeyPatch, other: str | None):
    """A worker reads the configuration without values, and the variables."""
    monkeypatch.setenv("KEY", "from-outside")
    own = {"a/b": {"secrets": {"key": "first-one"}}, "a/c": {"secrets": {"key": other}}, "a/d": {}}
    config = config_of(own, {"key": "third-one"})
    given = secrets_in_config(config)
    assert needs_of(config, "orl_adapter", tracked=False, settings={}).missing(given) == ["OPENREWARD_API_KEY"] + (
        ["KEY"] if other is None else []
    )
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    worker = decode_config(config.public(), "orl_config")
    read = [resolve_secrets(worker, name)["key"].value for name in ("a/b", "a/c", "a/d")]
    assert read == ["first-one", other or "from-outside", "third-one"]


def test_two_environments_of_one_variable_are_refused():
    config = config_of({"a/b-c": {"secrets": {"own": "first-one"}}, "a/b_c": {"secrets": {"own": "second-one"}}})
    with pytest.raises(ConfigError, match="`own` has several values") as refused:
        secrets_in_config(config)
    assert "-one" not in str(refused.value)


def test_a_secret_without_a_value_here_is_needed_nowhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    config = config_of({"a/b": {"secrets": {"gone": ""}}}, {"not_there": None, "gone": "one"})
    needs = needs_of(config, "orl_adapter", tracked=False, settings={})
    assert needs.missing({"OPENREWARD_API_KEY"}) == []
    assert needs.names == ("OPENREWARD_API_KEY", "not_there", "NOT_THERE")
    (line,) = unset_in(config)
    assert "`not_there`" in line


NEEDS = RequiredEnv(
    package="orl_adapter", variables=(("key", "KEY"), ("OTHER",)), settings={"QUEUES": "1"}, paths=("/runs/a",), gpus=24
)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (Node(address="10.0.0.1", head=True, variables=("key", "OTHER")), ""),
        (
            Node(address="10.0.0.1", head=True, variables=("OTHER",)),
            "no KEY: .*`KEY=... ray start --head`",
        ),
        (
            Node(address="10.0.0.2", head=False),
            "no KEY, OTHER.*`KEY=... OTHER=... ray start --address=10.0.0.1:6379`",
        ),
        (
            Node(address="10.0.0.2", head=False, variables=("key", "OTHER"), absent=("/runs/a",)),
            "10.0.0.2 does not see /runs/a: .*shared file system",
        ),
        (
            Node(address="10.0.0.2", head=False, variables=("key", "OTHER"), unreached=("http://127.0.0.1:8080",)),
            "10.0.0.2 does not reach http://127.0.0.1:8080.*`base_url`",
        ),
        (Node(address="10.0.0.2", head=False, has_package=False), "10.0.0.2 does not find orl_adapter.*install-into"),
        (Node(address="10.0.0.2", head=False, why="it did not answer"), "10.0.0.2: it did not answer"),
    ],
)
def test_what_a_node_lacks_is_named_with_what_mends_it(node: Node, told: str):
    found = problem_of(node, NEEDS, "10.0.0.1:6379")
    assert re.search(told, found) if told else found == ""
