"""An agent of Microsoft Agent Framework with its default client: Responses, and the server keeps the conversation."""

import asyncio
import os

from agent_framework import Agent, MCPStreamableHTTPTool
from agent_framework.openai import OpenAIChatClient


async def main() -> None:
    async with MCPStreamableHTTPTool(name="game", url=os.environ["ORL_MCP_URL"], load_prompts=False) as tools:
        agent = Agent(client=OpenAIChatClient(os.environ["ORL_MODEL"]), tools=tools)
        await agent.run(os.environ["ORL_PROMPT"])


asyncio.run(main())
