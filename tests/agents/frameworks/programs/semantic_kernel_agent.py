"""A ChatCompletionAgent of Semantic Kernel."""

import asyncio
import os

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.connectors.mcp import MCPStreamableHttpPlugin


async def main() -> None:
    url = os.environ["ORL_MCP_URL"]
    async with MCPStreamableHttpPlugin(name="game", url=url, load_prompts=False) as tools:
        service = OpenAIChatCompletion(ai_model_id=os.environ["ORL_MODEL"])
        await ChatCompletionAgent(service=service, plugins=[tools]).get_response(messages=os.environ["ORL_PROMPT"])


asyncio.run(main())
