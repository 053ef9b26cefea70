"""A ReActAgent of LlamaIndex: its actions are text."""

import asyncio
import os

from llama_index.core.agent.workflow import ReActAgent
from llama_index.llms.openai_like import OpenAILike
from llama_index.tools.mcp import aget_tools_from_mcp_url


async def main() -> None:
    llm = OpenAILike(
        model=os.environ["ORL_MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
    )
    agent = ReActAgent(tools=await aget_tools_from_mcp_url(os.environ["ORL_MCP_URL"]), llm=llm)
    await agent.run(os.environ["ORL_PROMPT"])


asyncio.run(main())
