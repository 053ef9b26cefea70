"""The loop that scripts copy from cookbooks, for comparison: everything again at every turn.

The whole conversation is rendered and tokenized, the whole request written and the whole answer read with the standard
library's JSON, the action found with a regular expression. The HTTP client is the same as ours; the session is ours, or
the SDK's own.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import aiohttp
from openreward.api.environments.client import AsyncEnvironment
from openreward.api.environments.types import Task as SdkTask
from orl_core.messages import TextBlock, ToolCall, ToolResult, ToolSpec, text_message, text_of
from orl_core.task import Task
from orl_rollout.loop.session import Opening
from orl_rollout.openreward import OpenRewardClient

from benchmarks.world import TASK, World

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
SAMPLING = {"temperature": 1.0, "max_new_tokens": 4096, "skip_special_tokens": False}
NUMBERS = itertools.count()


class SdkSession:
    """A session of the SDK's own client."""

    def __init__(self, environment: AsyncEnvironment) -> None:
        self._environment = environment

    async def open(self, task: Task) -> Opening:
        self._session = self._environment.session(
            SdkTask(server_name=task.env_name, environment_name="shell", task_spec=dict(task.task_spec), namespace=None)
        )
        await self._session.__aenter__()
        prompt = await self._session.get_prompt()
        tools = await self._session.list_tools()
        return Opening(
            messages=(text_message("user", "".join(getattr(block, "text", "") for block in prompt)),),
            tools=tuple(
                ToolSpec(name=t.name, description=t.description, parameters=dict(t.input_schema or {})) for t in tools
            ),
        )

    async def call(self, call: ToolCall) -> ToolResult:
        output = await self._session.call_tool(call.name, dict(call.arguments))
        blocks = tuple(TextBlock(text=getattr(block, "text", "")) for block in output.blocks)
        return ToolResult(name=call.name, content=blocks, reward=output.reward, finished=output.finished)

    async def close(self) -> None:
        await self._session.__aexit__(None, None, None)


class SdkClient:
    """Sessions of `environment` by the SDK's own client."""

    def __init__(self, environment: AsyncEnvironment) -> None:
        self._environment = environment

    def session(self, _task: Task) -> SdkSession:
        return SdkSession(self._environment)


async def play(
    world: World, client: OpenRewardClient | SdkClient, http: aiohttp.ClientSession, url: str, turns: int
) -> int:
    """One rollout of `turns` turns; how many ids it ended with."""
    session = client.session(TASK)
    headers = {"X-SMG-Routing-Key": f"c{next(NUMBERS):031d}"}
    hf: Any = world.hf  # transformers' own annotations are partial
    ids: list[int] = []
    try:
        opening = await session.open(TASK)
        tools: list[Any] = [
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
            for t in opening.tools
        ]
        messages: list[dict[str, Any]] = [{"role": m.role, "content": text_of(m.content)} for m in opening.messages]
        for _ in range(turns):
            text = hf.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
            ids = hf.encode(text, add_special_tokens=False)
            request = {"input_ids": ids, "sampling_params": SAMPLING, "return_logprob": True}
            async with http.post(f"{url}/generate", json=request, headers=headers) as response:
                answer = await response.json()
            logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
            spoken: str = hf.decode(answer["output_ids"], skip_special_tokens=False).removesuffix("<|im_end|>")
            found = CALL.search(spoken)
            call = json.loads(found.group(1) if found else "{}")
            result = await session.call(ToolCall(name=call["name"], arguments=call["arguments"]))
            said = {"role": "assistant", "content": spoken[: found.start()] if found else spoken}
            said |= {"tool_calls": [{"type": "function", "function": call}], "logprobs": logprobs}
            messages += [said, {"role": "tool", "name": result.name, "content": text_of(result.content)}]
    finally:
        await session.close()
    return len(ids)
