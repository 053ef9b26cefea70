"""Play with verifiers: ToolEnv and its client for OpenAI's chat completions, against the stand-in of an engine."""

from __future__ import annotations

import asyncio
import json
import os
import time
from itertools import pairwise
from typing import Any

import verifiers as vf
from asked import OPENING, Answer, answer, with_session, work
from datasets import Dataset
from transformers import AutoTokenizer
from verifiers.types import ClientConfig

os.environ.setdefault("NO_KEY", "none")
SAMPLING = {"temperature": 1.0, "logprobs": True, "extra_body": {"return_token_ids": True}}
WORK = work()
TOKENIZER: Any = AutoTokenizer.from_pretrained(WORK.folder, trust_remote_code=False)


async def free() -> str:
    return WORK.said


def paid(completion: Any) -> float:
    return float(len(completion) > 0)


def play(action: str, episodes: int, turns: int, rows: bool = False, url: str = "") -> Answer:
    client = ClientConfig(api_base_url=f"{WORK.engines[action]}/v1", api_key_var="NO_KEY", max_connections=1000)
    data = {"question": [f"{OPENING} {row}" for row in range(episodes)], "answer": [""] * episodes}
    made = vf.ToolEnv([], max_turns=turns, dataset=Dataset.from_dict(data), rubric=vf.Rubric([paid]))
    data = made.get_dataset()

    async def group(result: Any) -> Any:
        async def run(command: str) -> str:
            """Run a command."""
            return await result()

        made.add_tool(run)
        bars = {"on_start": lambda *_: None, "on_progress": lambda *_: None}
        return await made.generate(data, client, "m", SAMPLING, state_columns=["trajectory"], **bars)

    started = time.process_time()
    first = asyncio.run(with_session(url, group) if url else group(free))["outputs"][0]
    found: Answer = {"ms": 1000 * (time.process_time() - started) / episodes / turns}
    steps = first["trajectory"]
    found["read"] = [str(one.content) for one in steps[-1]["prompt"] if one.role == "tool"]
    found["ending"] = f"plays on, reward {first['reward']:g}, error {first.get('error')}"
    if rows:
        trained = [step["tokens"]["completion_ids"] for step in steps]
        ends = [[*shown(step["prompt"], made.tool_defs), *ids] for step, ids in zip(steps, trained, strict=True)]
        last = [*(new[: len(old)] != old for old, new in pairwise(ends)), True]
        found["trained"] = [token for ids in trained for token in ids]
        found["rows"] = [len(end) for end, ends_row in zip(ends, last, strict=True) if ends_row]
    return found


def shown(prompt: Any, tool_defs: Any) -> list[int]:
    """Return what an engine makes of the messages."""
    messages = [one.model_dump(exclude_none=True) for one in prompt]
    for call in (call for one in messages for call in one.get("tool_calls", ())):
        call["function"] = {"name": call["name"], "arguments": json.loads(call["arguments"])}
    tools = [{"type": "function", "function": one.model_dump(exclude_none=True)} for one in tool_defs]
    text = TOKENIZER.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    return TOKENIZER.encode(text, add_special_tokens=False)


if __name__ == "__main__":
    answer(play=play)
