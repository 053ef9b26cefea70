"""Play with tinker-cookbook: EnvFromMessageEnv, its renderer for Qwen3, a group of rollouts at once.

The completer answers in this process. One thread at a time has the tokenizer: without that lock a group of two already
ends with `RuntimeError: Already borrowed`.
"""

from __future__ import annotations

import asyncio
import time
from itertools import compress
from threading import Lock
from typing import Any

from asked import OPENING, Answer, answer, with_session, work
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.qwen3 import Qwen3InstructRenderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import EnvGroupBuilder
from transformers import AutoTokenizer

TOOL = {"name": "run", "description": "Run a command.", "parameters": {"type": "object", "properties": {}}}
LOCK = Lock()
WORK = work()


class Locked(Qwen3InstructRenderer):
    def build_generation_prompt(self, *more: Any, **named: Any) -> Any:
        with LOCK:
            return super().build_generation_prompt(*more, **named)

    def parse_response(self, response: Any) -> Any:
        with LOCK:
            return super().parse_response(response)


RENDERER = Locked(AutoTokenizer.from_pretrained(WORK.folder, trust_remote_code=False))


class Fixed(TokenCompleter):
    def __init__(self, ids: list[int]) -> None:
        self._said = TokensWithLogprobs(ids, [-0.5] * len(ids))

    async def __call__(self, *_: Any, **__: Any) -> TokensWithLogprobs:
        await asyncio.sleep(0)
        return self._said


class Talk(MessageEnv):
    def __init__(self, turns: int, run: Any) -> None:
        tools = RENDERER.create_conversation_prefix_with_tools([TOOL])
        self._messages, self._left, self._run = [*tools, {"role": "user", "content": OPENING}], turns, run

    async def initial_observation(self) -> list[Any]:
        return self._messages

    async def step(self, message: Any) -> MessageStepResult:
        self._left -= 1
        self._messages = [*self._messages, message, {"role": "tool", "name": "run", "content": await self._run()}]
        return MessageStepResult(0.0, self._left == 0, self._messages)


class Group(EnvGroupBuilder):
    def __init__(self, *size: Any) -> None:
        self._size = size

    async def make_envs(self) -> list[Any]:
        episodes, turns, run = self._size
        return [EnvFromMessageEnv(RENDERER, Talk(turns, run)) for _ in range(episodes)]


async def free() -> str:
    return WORK.said


def play(action: str, episodes: int, turns: int, rows: bool = False, url: str = "") -> Answer:
    async def group(run: Any) -> Any:
        return await do_group_rollout(Group(episodes, turns, run), Fixed(WORK.actions[action]))

    started = time.process_time()
    try:
        played = asyncio.run(with_session(url, group) if url else group(free)).trajectories_G
    except Exception as fault:  # noqa: BLE001  what reaches the training loop
        return {"ending": f"{type(fault).__name__} ends the group", "read": []}
    found: Answer = {"ms": 1000 * (time.process_time() - started) / episodes / turns, "ending": "as if nothing was"}
    if rows:
        data = trajectory_to_data(played[0], 1.0)
        kept = [one.loss_fn_inputs for one in data]
        found["trained"] = [token for one in kept for token in compress(one["target_tokens"].data, one["mask"].data)]
        found["rows"] = [one.model_input.length + 1 for one in data]
    return found


if __name__ == "__main__":
    answer(play=play)
