"""Play an episode as a program of its own: `agent: {command: [python, /path/to/program.py]}` in the configuration.

It imports nothing but Python's library, and knows nothing of orl but the variables of its environment. Any program in
any language plays like this.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any
from urllib.error import HTTPError

MODEL_URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
TOOLS_URL = os.environ["ORL_MCP_URL"]  # MCP over HTTP, without sessions


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send JSON and return the answer's JSON."""
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - the address is orl's
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


def over_mcp(method: str, **params: Any) -> dict[str, Any]:
    """Return the result of a method of the MCP server. An episode that is over has none."""
    answer = post(TOOLS_URL, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    if "error" in answer:
        raise SystemExit(0)
    return answer["result"]


def main() -> None:
    """Ask the model and make its calls, until it makes none or the episode is over."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]},
        }
        for tool in over_mcp("tools/list")["tools"]
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": os.environ["ORL_PROMPT"]}]
    while True:
        asked = {"model": os.environ["ORL_MODEL"], "messages": messages, "tools": tools}
        try:
            message = post(MODEL_URL, asked)["choices"][0]["message"]
        except HTTPError as refusal:
            raise SystemExit(0 if refusal.code == 400 else 1) from refusal  # 400: the episode or a budget is over
        messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            function = call["function"]
            result = over_mcp("tools/call", name=function["name"], arguments=json.loads(function["arguments"]))
            text = "\n".join(block["text"] for block in result["content"] if block["type"] == "text")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


if __name__ == "__main__":
    main()
