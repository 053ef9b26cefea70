"""A loopback server that speaks as the servers of older SDKs do. It serves one environment, `count`.

`tests/servers` holds the real SDKs against the same client. This fake replays their wire, so that a test needs no
package index.
"""

from __future__ import annotations

import asyncio
import base64
import json
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from aiohttp import web

TASKS = 3  # of each split


class SdkVersion(StrEnum):
    """The SDK whose wire is replayed."""

    ORS = "ors-sdk 0.1.0"
    OPENREWARD_60 = "openreward 0.1.60"
    OPENREWARD_75 = "openreward 0.1.75"
    OPENREWARD_25 = "openreward 0.1.25"  # `/create` insists on secrets in its body
    OPENREWARD_6 = "openreward 0.1.6"  # sessions only with OPENREWARD_LOCAL
    OPENREWARD_0 = "openreward 0.1.0"  # knows no sessions
    SILENT = "silent"  # accepts every request and answers none


class OlderServer:
    """The server, used as `async with`; `url` is set inside. `calls` and `secrets` are what the environment got."""

    def __init__(self, version: SdkVersion) -> None:
        self._version = version
        self._runner: web.AppRunner | None = None
        self._sessions = 0
        self.url = ""
        self.calls: list[dict[str, Any]] = []
        self.secrets: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self._version is SdkVersion.SILENT:
            await asyncio.Event().wait()
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        match request.path:
            case "/create_session":
                return self._create_session()
            case "/create":
                return self._create(request, body)
            case "/count/call":
                return self._call(body)
            case path:
                answer = self._facts(body).get(path)
        return web.json_response(answer) if answer is not None else _refuse(404, "Not Found")

    def _facts(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answers that change nothing, by path."""
        fields: dict[str, Any] = {"task_spec": {}, **({"secrets": {}} if self._body_secrets else {})}
        tasks = [{"number": number} for number in range(TASKS)]
        tools = {"tools": [{"name": "guess", "description": "", "input_schema": None}]}
        return {
            "/list_environments": ["count"],
            "/openapi.json": {"components": {"schemas": {"CreateSession": {"properties": fields}}}},
            "/delete": {},
            "/delete_session": {},
            "/ping": {},
            "/count/splits": [{"name": split, "type": split} for split in ("train", "test")],
            "/count/num_tasks": {"num_tasks": TASKS},
            "/count/task_range": {"tasks": tasks[body.get("start", 0) : body.get("stop", TASKS)]},
            "/count/tasks": {"tasks": tasks, "env_name": "count"},
            "/count/prompt": [{"text": "Guess.", "detail": None, "type": "text"}],
            "/count/tools": tools,
            "/count/task_tools": tools,
        }

    @property
    def _body_secrets(self) -> bool:
        return self._version is not SdkVersion.OPENREWARD_75

    def _create_session(self) -> web.Response:
        if self._version is SdkVersion.OPENREWARD_0:
            return _refuse(404, "Not Found")
        if self._version is SdkVersion.OPENREWARD_6:
            return _refuse(501, "Not implemented, OPENREWARD_LOCAL=1 should be set for local development")
        self._sessions += 1
        sid = f"session-{self._sessions}"
        if self._version is SdkVersion.OPENREWARD_60:
            return web.json_response({"sid": sid})
        return _events(f"event: task_id\r\ndata: {sid}\r\n\r\nevent: end\r\ndata: \r\n\r\n")

    def _create(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if self._version is SdkVersion.OPENREWARD_25 and "secrets" not in body:
            problem = {"type": "missing", "loc": ["body", "secrets"], "msg": "Field required", "input": body}
            return _refuse(422, [problem])
        if "secrets" in body and not self._body_secrets:
            problem = {"type": "extra_forbidden", "loc": ["body", "secrets"], "msg": "Extra inputs are not permitted"}
            return _refuse(422, [problem])
        sent = json.loads(base64.b64decode(request.headers.get("X-Secrets", "e30=")))
        self.secrets = (
            body.get("secrets", {}) if self._body_secrets else {name: entry["value"] for name, entry in sent.items()}
        )
        return web.json_response({"sid": request.headers["X-Session-ID"]})

    def _call(self, body: dict[str, Any]) -> web.Response:
        self.calls.append(body)
        output = {"blocks": [{"text": "yes", "detail": None, "type": "text"}], "reward": 1.0, "finished": True}
        reply = json.dumps({"ok": True, "output": {**output, "metadata": None}})
        return _events(f"event: task_id\r\ndata: call-1\r\n\r\nevent: end\r\ndata: {reply}\r\n\r\n")


def _refuse(status: int, detail: object) -> web.Response:
    return web.json_response({"detail": detail}, status=status)


def _events(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/event-stream")
