"""`orl doctor --live` against the SDK's own server and a stand-in of the upload service; builds; HTTP 402."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path

import pytest
from orl_core.config import decode_config
from orl_core.errors import ConfigError
from orl_launcher.main import main
from orl_rollout.run_folder.environments import record_versions
from orl_testing.environments import Echo, Served, Terminal, serve
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.kit.collector import Collector
from tests.launcher.outputs import printed

Capture = pytest.CaptureFixture[str]
KEY = "key-that-nobody-may-see"


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> Collector:
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("OPENREWARD_BUILD_SHA", "4f2a9c1e")
    return collector


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Generator[Served]:
    with serve(Echo, Terminal) as server:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", server.url)
        yield server


def test_live_makes_a_session_a_call_and_an_upload(platform: Collector, served: Served, capsys: Capture) -> None:
    report = printed(capsys, "doctor", "--live", "Org/Echo", "--set", "environments.Org/Echo.variant=echo")
    assert report["ok"]
    told = report["findings"][-1]["notes"]
    assert any("build 4f2a9c1e" in line for line in told)
    assert any(line.startswith("POST /create_session: 200 in ") for line in told)
    assert any(line.startswith("POST /echo/call: 200 in ") for line in told)
    assert any(line.startswith("result of echo: [TextBlock], a reward") for line in told)
    assert sum(line.startswith("POST /v1/rollouts: 200 in ") for line in told) == 2
    (start, *messages) = platform.events()
    assert start["runName"] == "orl-doctor"
    assert [one["type"] for one in messages if one["eventType"] == "message"][-2:] == ["tool_call", "tool_result"]
    assert served.sessions == 0
    assert KEY not in str(report)
    assert "Task 0" not in "\n".join(told)  # no text of the environment


def test_live_answers_where_there_is_no_tool(platform: Collector, served: Served, capsys: Capture) -> None:
    own = ["--set", "environments.my/Terminal.base_url=" + served.url]
    assert main(["doctor", "--live", "my/Terminal", *own]) == 0
    printed = capsys.readouterr().out
    assert "my/Terminal at its own server" in printed
    assert "not checked  upload" in printed
    assert platform.asked == 0


def refusing(app: ASGIApp) -> ASGIApp:
    """Answer as OpenReward does to an account without credit."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        refused = scope.get("path") == "/create_session"
        await (JSONResponse({"detail": "balance: 0"}, 402) if refused else app)(scope, receive, send)

    return answer


def test_payment_required_says_what_to_do(
    platform: Collector, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with serve(Echo, wrap=refusing) as server:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", server.url)
        assert main(["doctor", "--live", "Org/Echo"]) == 1
    printed = capsys.readouterr().out
    assert "add credit to the account of OPENREWARD_API_KEY" in printed
    assert "balance: 0" in printed
    assert "POST /create_session: 402 in " in printed
    assert platform.asked == 0


@pytest.mark.parametrize(("wanted", "same"), [("4f2a9c1e", True), ("4f2a", True), ("77", False)])
async def test_another_build_of_an_environment_is_refused(
    platform: Collector, served: Served, tmp_path: Path, wanted: str, same: bool
) -> None:
    own = {"base_url": served.url, "version": wanted}
    config = decode_config({"environments": {"my/Echo": own}}, "test")
    with nullcontext() if same else pytest.raises(ConfigError, match="my/Echo: `version` is 77"):
        await record_versions(config, tmp_path)
    assert (tmp_path / "environments.json").exists() == same
