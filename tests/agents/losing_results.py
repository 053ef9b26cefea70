"""Run an agent behind a proxy that takes the first result out of its requests: `losing_results.py LOG COMMAND`.

LOG gets a line for each request to a model that follows the loss: the status of the gateway's answer. Streams are
passed on as they come. It needs Python's library alone, as it runs in the Python of the agent's host.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

URLS = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ORL_MCP_URL")
NOT_PASSED = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}


def is_result(item: Any) -> bool:
    """Tell the result of a call in the forms of the three APIs."""
    return isinstance(item, dict) and (
        item.get("role") == "tool" or item.get("type") in ("tool_result", "function_call_output")
    )


def without_first_result(items: Any) -> tuple[Any, bool]:
    """Return the messages or items without the first result, and whether there was one."""
    if not isinstance(items, list):
        return items, False
    for place, item in enumerate(items):
        if is_result(item):
            return items[:place] + items[place + 1 :], True
        content, lost = without_first_result(item.get("content")) if isinstance(item, dict) else (None, False)
        if lost:
            rest = content or [{"type": "text", "text": "Go on."}]
            return [*items[:place], {**item, "content": rest}, *items[place + 1 :]], True
    return items, False


def handler_of(gateway: str, log: Path) -> type[BaseHTTPRequestHandler]:
    """Return a handler that passes requests on to `gateway`, "host:port"."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body, lost = self.rfile.read(int(self.headers.get("Content-Length") or 0)), False
            if body and "/mcp" not in self.path:
                request = json.loads(body)
                for name in ("messages", "input"):
                    request[name], hit = without_first_result(request.get(name))
                    lost = lost or hit
                body = json.dumps({name: value for name, value in request.items() if value is not None}).encode()
            upstream = http.client.HTTPConnection(gateway, timeout=150)
            kept = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED}
            upstream.request(self.command, self.path, body, {**kept, "Content-Length": str(len(body))})
            reply = upstream.getresponse()
            if lost:
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{reply.status}\n")
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in NOT_PASSED:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while chunk := reply.read1(1 << 16):
                self.wfile.write(chunk)
            upstream.close()
            self.close_connection = True

        do_GET = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the library
            """Say nothing."""

    return Handler


def main(log: str, *command: str) -> int:
    """Run the command, and return its exit code."""
    gateway = urlsplit(os.environ[URLS[0]]).netloc
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(gateway, Path(log)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = f"127.0.0.1:{server.server_address[1]}"
    variables = {name: os.environ[name].replace(gateway, own, 1) for name in URLS}
    code = subprocess.run(command, check=False, env={**os.environ, **variables}).returncode
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"exit {code}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
