"""Law L6 at the gateway: planted secrets and rewards stay out of all that an agent, a model or a file gets to see."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from orl_core.config import decode_config
from orl_core.messages import TextBlock, ToolResult, ToolSpec
from orl_core.task import Task
from orl_core.trajectory import StopReason
from orl_gateway import Episode, Gateway
from orl_rollout.episodes.journal import Journal, encode_entry, read_journal
from orl_rollout.loop.session import Session
from orl_rollout.run_folder.config_file import write_config
from orl_rollout.runtime.runtime import RolloutRequest
from orl_testing import ScriptedSession

from tests.gateway.agents import RENDERER, TASK, TOKENIZER, Model, episode_of
from tests.kit.runtimes import runtime_of

PLATFORM, OTHER, SECRET, WANTED = ("planted-" + name * 6 for name in ("platform", "other", "secret", "wanted"))
REWARD = 0.731957

# A program that writes down all that it sees: its environment, its command line, and every answer.
LOOKS = """
import json, os, sys, urllib.request
seen = [dict(os.environ), open("/proc/self/cmdline").read(), open("/proc/%d/cmdline" % os.getppid()).read()]
def post(url, body):
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(url, json.dumps(body).encode(), key)
    with urllib.request.urlopen(request) as answer:
        seen.append([dict(answer.headers), answer.read().decode()])
def rpc(method, **params):
    post(os.environ["ORL_MCP_URL"], {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
asked = {"model": "m", "messages": [{"role": "user", "content": os.environ["ORL_PROMPT"]}]}
rpc("initialize")
rpc("tools/list")
rpc("tools/call", name="look", arguments={"at": 1})
post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", asked)
post(os.environ["OPENAI_BASE_URL"] + "/responses", {"model": "m", "input": "Go on."})
post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", {**asked, "max_tokens": 99})
rpc("tools/call", name="look", arguments={"at": 2})
print(json.dumps(seen), file=open(sys.argv[1], "w"))
"""


class Pays:
    """An environment that pays for each call, and tells people more than the model."""

    def session(self, task: Task) -> Session:
        look = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "integer"}}})
        said, told = (TextBlock(text="A wall."),), {"score": REWARD}
        results = [
            ToolResult(name="look", content=said, reward=REWARD, finished=last, metadata=told) for last in (False, True)
        ]
        return ScriptedSession(results, tools=(look,))


async def test_nothing_planted_is_seen_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"OPENREWARD_API_KEY": PLATFORM, "HF_TOKEN": OTHER, "MY_API_KEY": WANTED}.items():
        monkeypatch.setenv(name, value)
    seen, run = tmp_path / "seen.json", tmp_path / "run"
    (tmp_path / "looks.py").write_text(LOOKS)
    command = [sys.executable, "-I", "-S", str(tmp_path / "looks.py"), str(seen)]
    tree: dict[str, Any] = {
        "environments": {"A/B": {}},
        "secrets": {"token": SECRET},
        "rollout": {"upload": False},
        "agent": {"command": command, "env": {"MY_API_KEY": None}},
    }
    config, engine = decode_config(tree, "test"), Model(("text",))
    with caplog.at_level(logging.DEBUG), Journal(run) as journal:
        runtime = runtime_of(config, Pays(), renderer=RENDERER, journal=journal)
        outcome = await runtime.play(RolloutRequest(task=TASK, rollout_id="k"), engine)
        write_config(run, config)
    assert (outcome.trajectory.error, outcome.trajectory.stop_reason) == ("", StopReason.FINISHED)
    assert outcome.reward == pytest.approx(2 * REWARD)
    (entry,) = read_journal(run)
    environment = json.loads(seen.read_text())[0]
    token = environment["OPENAI_API_KEY"]
    shown = [TOKENIZER.decode(ids) for ids, _ in engine.requests]
    kept = [encode_entry(entry).decode(), (run / "config.json").read_text(), caplog.text, outcome.trajectory.error]
    assert "A wall." in seen.read_text()
    for channel in (seen.read_text(), *shown):
        assert not [value for value in (PLATFORM, OTHER, SECRET, str(REWARD)) if value in channel]
    for channel in (*shown, *kept):
        assert not [value for value in (PLATFORM, OTHER, SECRET, WANTED, token) if value in channel]
    assert environment["MY_API_KEY"] == WANTED  # what it needs, it gets
    assert "MY_API_KEY" in kept[1]  # its name is no secret


PATHS = ("chat/completions", "responses", "messages", "messages/count_tokens", "nowhere")


async def test_token_opens_no_other_episode_by_any_path() -> None:
    async with Gateway() as gateway, episode_of(Model()) as mine, episode_of(Model()) as other:
        token, foreign, removed = gateway.add(mine), gateway.add(other), gateway.add(mine)
        gateway.remove(removed)
        assert min(map(len, {token, foreign, removed})) >= 43  # 256 bits
        urls = [f"{gateway.base_url('wrong')}/v1/{path}" for path in PATHS] + [f"{gateway.base_url('wrong')}/mcp"]
        odd = {"Origin": "http://evil.example", "Content-Encoding": "gzip"}  # the token is checked first
        async with aiohttp.ClientSession() as http:
            urls.append(f"{gateway.base_url(removed)}/v1/chat/completions")
            for url in (*urls, f"{gateway.url}/v1/chat/completions", f"{gateway.url}/mcp"):
                assert (await http.post(url, data=b"{", headers=odd)).status == 401
            keys = {"Authorization": f"Bearer {foreign}", "x-api-key": foreign}
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
            answer = await http.post(f"{gateway.base_url(token)}/v1/chat/completions", json=body, headers=keys)
            assert answer.status == 200
        assert [len(turns(one)) for one in (mine, other)] == [1, 0]  # the address chooses, not a key


def turns(episode: Episode) -> tuple[object, ...]:
    return episode.trajectory().turns
