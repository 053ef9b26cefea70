"""What the programs of the peers share: what they play, questions on stdin, answers on stdout, a real session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from openreward.api.environments.client import AsyncEnvironmentsAPI

Answer = dict[str, Any]
OPENING = "Find out why the tests of this repository fail, and repair it."


class Work:
    """The tokenizer's folder, ids of actions and addresses of engines by name, and the result of every call."""

    folder: str
    actions: dict[str, list[int]]
    engines: dict[str, str]
    said: str


def answer(**questions: Callable[..., Answer]) -> None:
    """Answer until stdin closes; what libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(questions[question.pop("ask")](**question)), file=out)


def work() -> Work:
    """Read what is played, the first line of stdin."""
    read = Work()
    vars(read).update(json.loads(sys.stdin.readline()))
    return read


async def with_session(url: str, play: Callable[[Callable[[], Awaitable[str]]], Awaitable[Any]]) -> Any:
    """Let `play` call the tool `run` of a session on the OpenReward server at `url`."""
    async with AsyncEnvironmentsAPI(url, "") as api:
        environment = api.get("bench/Shell", variant="shell")
        async with environment.session((await environment.list_tasks("train"))[0]) as session:

            async def run() -> str:
                return (await session.call_tool("run", {"command": "ls"})).blocks[0].text

            return await play(run)
