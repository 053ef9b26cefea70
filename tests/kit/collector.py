"""The platform's side of uploads, on loopback: what it was sent, and what it answers, when and whether at all."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

Answer = int | tuple[int, dict[str, str]]


class Collector:
    """The requests that were taken, one by one. `answers` are given in turn, then 200.

    Requests after the first `at_once` are held until `open` is set.
    """

    def __init__(self) -> None:
        self.port = 0
        self.batches: list[list[dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[Answer] = []
        self.asked = 0  # requests that arrived
        self.hang_up = False  # after each answer, without a word
        self.at_once = 1_000_000
        self.open = threading.Event()
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def events(self) -> list[dict[str, Any]]:
        return [event for batch in self.batches for event in batch]

    def started(self) -> list[str]:
        """The rollouts whose start was taken, in order, as often as it was."""
        return [event["rolloutName"] for event in self.events() if event["eventType"] == "rollout"]

    def finished(self) -> list[str]:
        """The ids of the rollouts whose last message was taken, as often as it was."""
        return [event["rolloutEventId"] for event in self.events() if event.get("isFinished")]

    def wait_for(self, requests: int) -> None:
        """Until so many requests arrived in all, whatever their answers."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= requests, 30)

    @contextmanager
    def serving(self) -> Generator[None]:
        """Answer on a port of loopback, the same one each time."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.changed:
                    collector.asked += 1
                    held = collector.asked > collector.at_once
                    collector.changed.notify_all()
                assert not held or collector.open.wait(30)
                answer = collector.answers.pop(0) if collector.answers else 200
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                if status == 200:
                    assert self.path == "/v1/rollouts"
                    collector.headers.append(dict(self.headers))
                    collector.batches.append(msgspec.json.decode(body)["events"])
                with suppress(ConnectionError):  # who asked may be dead by now
                    self.send_response(status)
                    for name, value in {"Content-Length": "2", **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(b"{}")
                self.close_connection = collector.hang_up

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True  # a connection that is kept alive would hold the end up

        with Server(("127.0.0.1", self.port), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield
            finally:
                self.open.set()
                server.shutdown()
                thread.join()
