"""An agent that knows nothing of orl: it plays over HTTP until the episode is over. For `agent` in configurations."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from orl_gateway import AgentEpisode


async def plays(episode: AgentEpisode) -> None:
    """Ask the model, make its calls, and ask again."""
    tools: list[Any] = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in episode.tools
    ]
    asked: dict[str, Any] = {"model": episode.model, "tools": tools}
    messages: list[Any] = [{"role": "user", "content": episode.prompt}]
    async with aiohttp.ClientSession() as http:
        while not episode.over():
            async with http.post(
                f"{episode.base_url}/chat/completions", json={**asked, "messages": messages}
            ) as response:
                answer = await response.json()
            if "error" in answer:
                raise RuntimeError(answer["error"]["message"])
            said = answer["choices"][0]["message"]
            messages.append(said)
            if not said.get("tool_calls"):
                return
            for call in said["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                text = await episode.call(call["function"]["name"], **arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


async def idles(_: AgentEpisode) -> None:
    """End without a request."""
