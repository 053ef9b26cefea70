"""A loop around LiteLLM's `completion`, which speaks Responses. `program` is examples/agents/program.py."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from program import over_mcp

tools = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["inputSchema"]}}
    for tool in over_mcp("tools/list")["tools"]
]
messages = [{"role": "user", "content": os.environ["ORL_PROMPT"]}]
while True:
    answer = litellm.completion(f"openai/responses/{os.environ['ORL_MODEL']}", messages=messages, tools=tools)
    said = answer.choices[0].message
    messages.append(said.model_dump())
    for call in said.tool_calls:
        arguments = json.loads(call.function.arguments)
        result = over_mcp("tools/call", name=call.function.name, arguments=arguments)["content"]
        text = "\n".join(block["text"] for block in result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
