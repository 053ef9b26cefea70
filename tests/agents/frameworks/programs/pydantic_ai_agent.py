"""An agent of pydantic-ai, with an output of type `str` or `dict`."""

import os
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(
    OpenAIChatModel(os.environ["ORL_MODEL"]),
    output_type={"str": str, "dict": dict}[sys.argv[1]],
    toolsets=[MCPToolset(os.environ["ORL_MCP_URL"])],
)
agent.run_sync(os.environ["ORL_PROMPT"])
