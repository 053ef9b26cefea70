"""Servers of other SDK versions: listing, doctor and an episode. `just nightly servers` runs it.

It needs the package index. The versions are the oldest and the newest that are supported, and those between them where
the wire changed. Each is installed into an environment of its own, which is thrown away.
"""

from __future__ import annotations

import io
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from orl_core.config import RunConfig, decode_config
from orl_core.errors import SessionRefused
from orl_core.limits import Limits
from orl_core.messages import FailureKind, ToolCall, text_of
from orl_core.trajectory import Generation, RolloutSpec, StopReason
from orl_launcher.doctor.doctor import check_environments
from orl_launcher.doctor.report import Report
from orl_rollout.loop.loop import rollout
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.tasks.file import read_tasks
from orl_rollout.tasks.prepare import prepare
from orl_testing import ScriptedEngine
from rich.console import Console

from tests.kit.episodes import RENDERER, TOKENIZER
from tests.servers.process import installed, serving

pytestmark = pytest.mark.servers

VERSIONS = (
    "ors-sdk==0.1.0",
    "openreward==0.1.60",  # the oldest: secrets in the body, a session named in JSON
    "openreward==0.1.64",  # secrets in a header, a session named by a stream
    "openreward==0.1.75",  # /version
    "openreward==0.1.92",  # the last listing without env_name
    "openreward==0.1.93",  # env_name
    "openreward==0.1.94",  # toolsets
    "openreward==0.1.122",  # prompt and tools before the setup is done
    "openreward==0.1.156",  # 503 while the setup runs
    "openreward==0.1.157",  # /messages, score_group
    "openreward==0.1.167",  # the newest
)
TOO_OLD = ("openreward==0.1.2", "openreward==0.1.6")
SECRET = "abcdefgh-12345678"


class Sdk(Struct, frozen=True):
    """A running server of one version. `log` is what it wrote."""

    version: str
    url: str
    log: Path

    def calls(self) -> list[dict[str, Any]]:
        lines = self.log.read_text("utf-8").splitlines()
        return [json.loads(line.removeprefix("call: ")) for line in lines if line.startswith("call: ")]


@pytest.fixture(scope="module")
def sdk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Sdk]:
    """Install the version that the test names, and serve `count` with it."""
    version: str = request.param
    folder = tmp_path_factory.mktemp("sdk")
    module = "ors" if version.startswith("ors") else "openreward.environments"
    command = [str(installed(folder / "venv", [version])), str(Path(__file__).with_name("count.py")), module]
    with serving(command, folder / "log") as url:
        yield Sdk(version, url, folder / "log")


def config_of(url: str, **environment: Any) -> RunConfig:
    named = {"base_url": url, "eval_splits": ["test"], "secrets": {"token": SECRET}, **environment}
    return decode_config({"environments": {"other/Count": named}}, "test")


def guessing(*numbers: int) -> ScriptedEngine:
    """An engine that guesses these numbers, one in each action."""

    def action(number: int) -> Generation:
        call = json.dumps({"name": "guess", "arguments": {"number": number}})
        ids = tuple(TOKENIZER.encode_joint(f"<tool_call>\n{call}\n</tool_call><|im_end|>"))
        return Generation(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop")

    return ScriptedEngine([action(number) for number in numbers])


@pytest.mark.parametrize("sdk", VERSIONS, indirect=True)
async def test_version_lists_and_plays(sdk: Sdk, tmp_path: Path) -> None:
    config, path = config_of(sdk.url), tmp_path / "tasks.jsonl"
    assert (await prepare(config, path)).total == 5
    assert (await prepare(config, tmp_path / "eval.jsonl", splits=("eval_splits",))).total == 5
    tasks = sorted(read_tasks(path, config), key=lambda task: task.index or 0)
    assert {task.environment_name for task in tasks} == {"count"}

    async with OpenRewardClient(config) as client:
        session = client.session(tasks[3])
        opening = await session.open(tasks[3])
        assert text_of(opening.messages[0].content) == "The number is 3."
        assert (await session.call(ToolCall(name="gess"))).failure is FailureKind.UNKNOWN_TOOL
        assert (await session.call(ToolCall(name="guess"))).failure is FailureKind.INVALID_ARGUMENTS
        await session.close()

        job = RolloutSpec(task=tasks[3], rollout_id="k", limits=Limits(tool_result_tokens=64))
        played = await rollout(job, session=client.session(tasks[3]), renderer=RENDERER, engine=guessing(1, 3))
    assert (played.stop_reason, played.error) == (StopReason.FINISHED, "")
    assert [call["reward"] for call in sdk.calls()] == list(played.rewards) == [0.25, 1.0]
    assert [call["number"] for call in sdk.calls()] == [1, 3]
    assert all("token" in call["secrets"] for call in sdk.calls())
    assert text_of(played.turns[0].results[0].content) == "\n".join(["    yes"] * 2000)


@pytest.mark.parametrize("sdk", VERSIONS, indirect=True)
def test_doctor_opens_a_session(sdk: Sdk) -> None:
    output = io.StringIO()
    page = Report(Console(file=output, width=200), 60.0)
    opened = check_environments(page, config_of(sdk.url))
    assert opened is not None, output.getvalue()
    assert [tool.name for tool in opened[1].tools] == ["guess"]
    assert page.conclude()


@pytest.mark.parametrize("sdk", ["openreward==0.1.93", "ors-sdk==0.1.0"], indirect=True)
async def test_toolset_of_an_older_sdk_is_refused(sdk: Sdk, tmp_path: Path) -> None:
    config, path = config_of(sdk.url, toolset="codex"), tmp_path / "tasks.jsonl"
    await prepare(config, path)
    task = next(iter(read_tasks(path, config)))
    async with OpenRewardClient(config) as client:
        with pytest.raises(SessionRefused, match=r"0\.1\.94"):
            await client.session(task).open(task)


@pytest.mark.parametrize("sdk", TOO_OLD, indirect=True)
async def test_version_is_too_old_and_refused(sdk: Sdk, tmp_path: Path) -> None:
    with pytest.raises(SessionRefused, match=r"openreward 0\.1\.60"):
        await prepare(config_of(sdk.url), tmp_path / "tasks.jsonl")
