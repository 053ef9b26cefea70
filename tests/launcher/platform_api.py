"""As much of OpenReward's API as says which secrets an environment needs and how hard its tasks are, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs

import msgspec


class Platform(ThreadingHTTPServer):
    """The server. `needed` is its answer, None a failure; `asked` are path and key of all that it was asked.

    `difficulty` has the mean reward of tasks by split and index.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.needed: list[str] | None = []
        self.difficulty: dict[str, dict[int, float]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        platform = cast("Platform", self.server)
        platform.asked.append((self.path, self.headers["X-API-Key"]))
        self.send_response(200 if platform.needed is not None else 500)
        self.end_headers()
        path, _, query = self.path.partition("?")
        if path.endswith("/task-difficulty"):
            (split,) = parse_qs(query)["split"]
            rewards = platform.difficulty.get(split, {})
            rows = [{"task_index": n, "avg_reward": reward, "num_rollouts": 4} for n, reward in rewards.items()]
            self.wfile.write(msgspec.json.encode(rows))
        else:
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
