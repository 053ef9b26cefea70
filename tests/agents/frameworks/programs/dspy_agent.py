"""A ReAct module of DSPy. `program` is examples/agents/program.py: its calls go over MCP."""

import os

import dspy
from program import over_mcp


def guess(number: int) -> str:
    """Guess the number."""
    content = over_mcp("tools/call", name="guess", arguments={"number": number})["content"]
    return "\n".join(block["text"] for block in content)


dspy.configure(lm=dspy.LM(f"openai/{os.environ['ORL_MODEL']}", api_base=os.environ["OPENAI_BASE_URL"], cache=False))
dspy.ReAct("question -> answer", tools=[guess])(question=os.environ["ORL_PROMPT"])
