"""Everything that we use of `openreward` and that its documentation does not promise: a new release can move it."""

from __future__ import annotations

import importlib
import inspect
import sys
from subprocess import run
from typing import Any

import pytest
from orl_testing.environments import Echo

TYPES, SECRETS = "openreward.api.environments.types", "openreward.api.sandboxes.secrets"
CALLABLES = {
    f"{TYPES}:GroupCandidate": {"messages"},
    f"{TYPES}:Message": {"role", "blocks"},
    f"{TYPES}:ReasoningBlock": {"text"},
    f"{TYPES}:ToolCallBlock": {"id", "name", "input"},
    f"{TYPES}:ToolResultBlock": {"tool_call_id", "blocks"},
    f"{TYPES}:TextBlock": {"text"},
    f"{TYPES}:ImageBlock": {"data", "mimeType"},
    f"{SECRETS}:build_secrets_header": {"secrets"},
}


def taken_from(place: str) -> Any:
    """Return the object at `module:name`; the test fails if there is none."""
    module, name = place.split(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as exc:
        pytest.fail(f"the SDK moved: {place} is gone ({exc}); adapt orl_rollout.openreward", pytrace=False)


def check_parameters(place: str, used: set[str]) -> None:
    """Fail if the function does not take the parameters that we pass."""
    missing = used - set(inspect.signature(taken_from(place)).parameters)
    if missing:
        pytest.fail(f"the SDK moved: {place} takes no {', '.join(sorted(missing))}", pytrace=False)


@pytest.mark.parametrize(("place", "used"), CALLABLES.items(), ids=CALLABLES)
def test_type_takes_what_we_pass(place: str, used: set[str]) -> None:
    check_parameters(place, used)


def test_secrets_travel_with_the_platforms_key() -> None:
    augment, header = (
        taken_from(f"{SECRETS}:{name}") for name in ("augment_secrets_with_api_key", "build_secrets_header")
    )
    secrets = {"token": ("hush", ["example.org"])}
    assert header(augment(secrets, "key", "https://sessions.openreward.ai", None)), "the SDK moved: no header"
    hosts = taken_from(f"{SECRETS}:WELL_KNOWN_SECRETS").values()
    assert all(isinstance(host, str) for named in hosts for host in named), "the SDK moved: hosts of known secrets"


def test_secrets_load_without_the_sdks_other_clients() -> None:
    program = "from orl_rollout.openreward.platform import usual_hosts; import sys; print(*usual_hosts('HF_TOKEN')); "
    ended = run([sys.executable, "-c", f"{program}print('openai' in sys.modules)"], capture_output=True, check=True)
    hosts, *others = ended.stdout.decode().splitlines()
    assert hosts.split() == taken_from(f"{SECRETS}:WELL_KNOWN_SECRETS")["HF_TOKEN"]
    assert others == ["False"]


def test_the_server_counts_its_sessions() -> None:
    server = taken_from("openreward.environments:Server")([Echo])
    assert len(server._active_envs) == 0, "the SDK moved: Server._active_envs, which the gallery counts"


@pytest.mark.parametrize("place", [f"{TYPES}:NoSuchBlock", "openreward.api.no_such_module:Message"])
def test_negative_control_a_name_that_is_gone_is_told(place: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="the SDK moved"):
        taken_from(place)
    with pytest.raises(pytest.fail.Exception, match=r"the SDK moved.*takes no colour"):
        check_parameters(f"{TYPES}:TextBlock", {"text", "colour"})
