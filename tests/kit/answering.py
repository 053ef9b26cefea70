"""An ASGI application that answers some paths of another one by a script."""

from __future__ import annotations

from typing import Any


class Answering:
    """Answers some paths itself: `answers` holds status, headers and body by the path's end."""

    answers: dict[str, tuple[int, list[tuple[bytes, bytes]], bytes]] = {}

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for path, (status, headers, body) in self.answers.items():
            if scope.get("path", "").endswith(path):
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self.app(scope, receive, send)
