"""The wire of older SDKs, replayed on loopback; `just nightly servers` plays the SDKs themselves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from orl_core.config import RunConfig, decode_config
from orl_core.errors import SessionRefused, SessionTimeout
from orl_core.limits import Limits
from orl_core.trajectory import RolloutSpec, StopReason
from orl_rollout.loop.loop import rollout
from orl_rollout.openreward import OpenRewardClient, client
from orl_rollout.openreward.transport import refusal_words
from orl_rollout.tasks.file import read_tasks
from orl_rollout.tasks.prepare import prepare
from orl_testing.older_server import TASKS, OlderServer, SdkVersion

from tests.kit.episodes import RENDERER, model

PLAYED = (SdkVersion.ORS, SdkVersion.OPENREWARD_60, SdkVersion.OPENREWARD_75)
SECRET = "abcdefgh-12345678"


def config_of(url: str, secrets: dict[str, str] | None = None) -> RunConfig:
    tree = {"environments": {"other/Count": {"base_url": url, "secrets": secrets or {}}}}
    return decode_config(tree, "test")


@pytest.mark.parametrize(
    ("version", "secrets"),
    [
        *((version, {}) for version in PLAYED),
        *((version, {"token": SECRET}) for version in (*PLAYED, SdkVersion.OPENREWARD_25)),
    ],
)
async def test_older_server_is_listed_and_played(version: SdkVersion, secrets: dict[str, str], tmp_path: Path):
    async with OlderServer(version) as server:
        config, path = config_of(server.url, secrets), tmp_path / "tasks.jsonl"
        assert (await prepare(config, path)).total == TASKS
        tasks = list(read_tasks(path, config))
        assert {task.environment_name for task in tasks} == {"count"}
        job = RolloutSpec(task=tasks[0], rollout_id="k", limits=Limits())
        async with OpenRewardClient(config) as opened:
            played = await rollout(job, session=opened.session(tasks[0]), renderer=RENDERER, engine=model(("guess",)))
        assert (played.stop_reason, played.rewards) == (StopReason.FINISHED, (1.0,))
        assert server.calls == [{"name": "guess", "input": {}}]
        assert secrets.items() <= server.secrets.items()


@pytest.mark.parametrize("version", [SdkVersion.OPENREWARD_0, SdkVersion.OPENREWARD_6])
async def test_too_old_server_is_refused_with_the_version(version: SdkVersion, tmp_path: Path):
    async with OlderServer(version) as server:
        async with asyncio.timeout(5):
            with pytest.raises(SessionRefused, match=r"POST /create_session .* openreward 0\.1\.60"):
                await prepare(config_of(server.url), tmp_path / "tasks.jsonl")


async def test_missing_secrets_field_names_the_version(tmp_path: Path):
    async with OlderServer(SdkVersion.OPENREWARD_25) as server:
        config, path = config_of(server.url), tmp_path / "tasks.jsonl"
        await prepare(config, path)
        task = next(iter(read_tasks(path, config)))
        async with OpenRewardClient(config) as opened:
            with pytest.raises(SessionRefused, match=r"body\.secrets.* openreward 0\.1\.60"):
                await opened.session(task).open(task)


async def test_silent_server_is_refused_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "CONTACT_SECONDS", 0.2)
    async with OlderServer(SdkVersion.SILENT) as server, asyncio.timeout(5):
        with pytest.raises(SessionTimeout, match=server.url):
            await prepare(config_of(server.url), tmp_path / "tasks.jsonl")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b'{"detail": "Not Found"}', "unknown to this server (Not Found)"),
        (404, b"<html>", "unknown to this server"),
        (405, b"", "unknown to this server"),
        (501, b'{"detail": "set OPENREWARD_LOCAL=1"}', "(set OPENREWARD_LOCAL=1)"),
        (422, b'{"detail": [{"loc": ["body", "toolset_name"], "msg": "not permitted", "input": "hush"}]}', "0.1.94"),
    ],
)
def test_unknown_request_is_told_with_what_to_do(status: int, body: bytes, told: str):
    words = refusal_words(status, "POST /create", body)
    assert told in words
    assert "POST /create" in words
    assert "openreward 0.1.60" in words
    assert "hush" not in words


@pytest.mark.parametrize(
    ("status", "detail"), [(404, "unknown environment 'x'"), (400, "Invalid split"), (500, "Boom"), (503, "starting")]
)
def test_own_words_of_a_server_stay(status: int, detail: str):
    assert refusal_words(status, "POST /create", json.dumps({"detail": detail}).encode()) == detail
