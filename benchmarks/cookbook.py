"""The loop that scripts copy from cookbooks, for comparison: everything again at every turn.

The whole conversation is rendered and tokenized, the whole request written and the whole answer read with the standard
library's JSON, the action found with a regular expression. Session and HTTP client are the same as ours.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import aiohttp
from orl_core.messages import ToolCall, text_of
from orl_rollout.openreward import OpenRewardClient

from benchmarks.world import TASK, World

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
SAMPLING = {"temperature": 1.0, "max_new_tokens": 4096, "skip_special_tokens": False}
NUMBERS = itertools.count()


async def play(world: World, client: OpenRewardClient, http: aiohttp.ClientSession, url: str, turns: int) -> int:
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
