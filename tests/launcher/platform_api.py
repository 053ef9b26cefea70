"""As much of OpenReward's API as says which secrets an environment needs, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import msgspec


class Platform(ThreadingHTTPServer):
    """The server. `needed` is its answer, None a failure; `asked` are path and key of all that it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.needed: list[str] | None = []
        self.asked: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        platform = cast("Platform", self.server)
        platform.asked.append((self.path, self.headers["X-API-Key"]))
        self.send_response(200 if platform.needed is not None else 500)
        self.end_headers()
        self.wfile.write(msgspec.json.encode({"secrets": platform.needed}))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


@contextmanager
def platform_api() -> Generator[Platform]:
    """A running one, on a thread."""
    with Platform() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
