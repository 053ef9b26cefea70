"""An agent in a process of its own: it posts its whole history again and again over one connection, as clients do."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from benchmarks.servers import read_settings


def main() -> None:
    """Play `turns` turns at `base_url`; `text` is the result of every call."""
    settings = read_settings()
    url = urlsplit(settings["base_url"])
    tools = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]
    messages: list[Any] = [{"role": "user", "content": settings["text"]}]
    connection = http.client.HTTPConnection(url.hostname or "", url.port)
    for _ in range(settings["turns"]):
        body = json.dumps({"model": "m", "messages": messages, "tools": tools, "temperature": 1.0})
        connection.request("POST", f"{url.path}/chat/completions", body, {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())
        said = answer["choices"][0]["message"]
        messages.append({name: value for name, value in said.items() if value is not None})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": settings["text"]} for call in said["tool_calls"]
        ]


if __name__ == "__main__":
    main()
