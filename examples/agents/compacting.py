"""Play GuessNumber in a context that is too small for a game: an agent that compacts, on OpenAI's own client.

When the context is full, the gateway refuses with `context_length_exceeded`. The agent then begins a new conversation
with what it still has to know: the range that is left, and how many guesses. Each conversation is a row of training
data, and all rows share the reward of the game.
"""

from __future__ import annotations

import json
import re
import ssl
from typing import Any

from openai import AsyncOpenAI, BadRequestError, DefaultAsyncHttpxClient
from orl_gateway import AgentEpisode

TLS = ssl.create_default_context()  # one for all clients: to make one takes longer than a turn
LEFT = re.compile(r"(\d+) to (\d+)")


async def agent(episode: AgentEpisode) -> None:
    """Play one episode."""
    tools: Any = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in episode.tools
    ]
    prompt, guesses = episode.prompt, 0
    messages: list[Any] = [{"role": "user", "content": prompt}]
    async with (
        DefaultAsyncHttpxClient(verify=TLS) as http,
        AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, http_client=http) as client,
    ):
        while not episode.over():
            try:
                answer = await client.chat.completions.create(model=episode.model, messages=messages, tools=tools)
            except BadRequestError as refusal:
                if refusal.code != "context_length_exceeded" or len(messages) == 1:
                    raise
                prompt, guesses = summary(prompt, messages, guesses), 0
                messages = [{"role": "user", "content": prompt}]
                continue
            message: Any = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                text = await episode.call(call.function.name, **json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                guesses += 1
            if not message.tool_calls:
                return


def summary(prompt: str, messages: list[Any], guesses: int) -> str:
    """Return the prompt for the rest of the game: `messages` began with `prompt`, and hold so many guesses."""
    replies = [one["content"] for one in messages if isinstance(one, dict) and one["role"] == "tool"]
    ranges = [found.groups() for reply in [prompt, *replies] if (found := LEFT.search(reply))]
    allowed = int(prompt.rpartition(" ")[2])
    return f"Find the number I picked from {ranges[-1][0]} to {ranges[-1][1]}. Guesses left: {allowed - guesses}"
