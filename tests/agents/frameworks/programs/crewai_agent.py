"""An agent of CrewAI, in a crew of one. `program` is examples/agents/program.py.

The names of the tools of `mcps` hold the address of the episode, so a tool of its own makes the call.
"""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from program import over_mcp


@tool("guess")
def guess(number: int) -> str:
    """Guess the number."""
    content = over_mcp("tools/call", name="guess", arguments={"number": number})["content"]
    return "\n".join(block["text"] for block in content)


llm = LLM(model=f"openai/{os.environ['ORL_MODEL']}", base_url=os.environ["OPENAI_BASE_URL"])
player = Agent(role="player", goal="Win.", backstory="You play.", llm=llm, tools=[guess])
task = Task(description=os.environ["ORL_PROMPT"], expected_output="The number.", agent=player)
Crew(agents=[player], tasks=[task]).kickoff()
