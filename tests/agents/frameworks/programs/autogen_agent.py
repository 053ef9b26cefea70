"""An AssistantAgent of AutoGen."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StreamableHttpServerParams

ABLE = {"vision": False, "function_calling": True, "json_output": False, "family": "any", "structured_output": False}


async def main() -> None:
    client = OpenAIChatCompletionClient(model=os.environ["ORL_MODEL"], model_info=ABLE)
    async with McpWorkbench(StreamableHttpServerParams(url=os.environ["ORL_MCP_URL"])) as tools:
        agent = AssistantAgent("player", client, workbench=tools, system_message=None, max_tool_iterations=100)
        await agent.run(task=os.environ["ORL_PROMPT"])


asyncio.run(main())
