"""An agent of smolagents: `auto`, `required` (its default) or `code`."""

import os
import sys

from smolagents import CodeAgent, MCPClient, OpenAIServerModel, ToolCallingAgent

model = OpenAIServerModel(os.environ["ORL_MODEL"], **({"tool_choice": "auto"} if sys.argv[1] == "auto" else {}))
with MCPClient({"url": os.environ["ORL_MCP_URL"], "transport": "streamable-http"}, structured_output=False) as tools:
    agent = (CodeAgent if sys.argv[1] == "code" else ToolCallingAgent)(tools=tools, model=model)
    agent.run(os.environ["ORL_PROMPT"])
