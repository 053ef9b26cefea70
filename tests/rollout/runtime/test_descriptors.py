"""A machine without descriptors for more connections (EMFILE) is full: rollouts wait, and none is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from orl_testing import environments as envs

from tests.kit.episodes import calling
from tests.kit.serving import engine

pytestmark = pytest.mark.slow  # a process of its own

ROLLOUTS = 30
MORE = 300  # ids after the opening, about nine calls
ROOT = Path(__file__).parents[3]
PLAYS = """
import asyncio, json, logging, os, resource, sys
from orl_core.config import decode_config
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.sglang.client import SglangEngine
from tests.kit.episodes import task_of
from tests.kit.runtimes import runtime_of

async def main(environment, engine, free, rollouts):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    config = decode_config({"environments": {"gallery/Trouble": {"base_url": environment}}}, "test")

    async def play(*names):
        async with OpenRewardClient(config) as client, SglangEngine(engine, context_tokens=4096) as asked:
            playing = runtime_of(config, client)
            requests = [RolloutRequest(task=task_of("Trouble", name=name), rollout_id=name) for name in names]
            outcomes = await asyncio.gather(*(playing.play(request, asked) for request in requests))
            return [outcome.trajectory.error for outcome in outcomes]

    await play("first")  # imports need descriptors too
    most = len(os.listdir("/proc/self/fd")) - 1 + int(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ends = await play(*(f"low {free} {n}" for n in range(int(rollouts))))
    print(json.dumps({"ends": ends, "said": [line for line in said if "ulimit" in line]}))

asyncio.run(main(*sys.argv[1:]))
"""


def play(url: str, free: int, rollouts: int) -> dict[str, Any]:
    """Return the errors and warnings of a process that has `free` descriptors left for its rollouts."""
    said = [list(calling(name).token_ids) for name in ("step", "finish")]
    lengths: list[int] = []  # the opening is the shortest context

    def policy(ids: list[int], _: dict[str, Any]) -> list[int]:
        lengths.append(len(ids))
        return said[len(ids) > min(lengths) + MORE]

    with engine(policy) as engine_url:
        command = [sys.executable, "-c", PLAYS, url, engine_url, str(free), str(rollouts)]
        done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, timeout=100, check=True)
    return json.loads(done.stdout)


def test_rollouts_wait_for_descriptors_and_none_is_lost(gallery: envs.Served) -> None:
    played = play(gallery.url, 12, ROLLOUTS)
    assert played["ends"] == [""] * ROLLOUTS
    ran = {envs.Trouble.ran[f"low 12 {n}"] for n in range(ROLLOUTS)}
    assert len(ran) == 1, "a call ran twice, or a rollout was played again"
    assert len(played["said"]) == 1
