"""The web server of `orl view`: on loopback, read-only, behind a token in the address.

Pages load nothing from elsewhere, and a strict Content-Security-Policy keeps them from it, whatever episodes say.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from aiohttp import web
from orl_core.errors import ConfigError, OrlError, boundary

from orl_launcher.view.pages import Address, NotFoundError, Pages

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASSETS = {"style.css": "text/css", "view.css": "text/css", "live.js": "text/javascript"}
HOSTS = ("127.0.0.1", "localhost", "[::1]")
PATHS = ("", "run/{run}", "run/{run}/{view:episodes}", "run/{run}/{view:episode|group}/{number:[0-9]{1,12}}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Viewer:
    """The viewer of the runs at `root`. `token` opens the pages."""

    def __init__(self, root: Path, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._pages = Pages(root, Address(f"/{self.token}/"))
        self._pages.catalog.runs()

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard])
        for path in PATHS:
            app.router.add_get(f"/{{token}}/{path}", self._answer)
        app.router.add_get("/{token}/{asset:[a-z]+[.][a-z]+}", self._asset)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer only who knows the token, and only requests that name this machine as the host."""
        host = (request.host or "").rpartition(":")[0] or request.host
        known = hmac.compare_digest(request.path.split("/")[1].encode(), self.token.encode())
        if not known or host not in HOSTS:
            answer: web.StreamResponse = web.Response(status=403, text="Open the address that orl view printed.\n")
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as refusal:
                answer = web.Response(status=refusal.status, text=f"{refusal.reason}\n")
        answer.headers.update(HEADERS)
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        """Answer with a page, which is made on a thread, or with one that says what is wrong."""
        status = 200
        try:
            text = await asyncio.to_thread(self._page, request)
        except OrlError as fault:
            status = 404 if isinstance(fault, NotFoundError) else 400 if isinstance(fault, ConfigError) else 500
            text = self._pages.problem(str(fault))
        return web.Response(status=status, text=text, content_type="text/html")

    def _page(self, request: web.Request) -> str:
        """Return a page. Files of a run may hold anything: they break only this page."""
        run, view, number = (request.match_info.get(name, "") for name in ("run", "view", "number"))
        with boundary(OrlError, f"making the page {request.rel_url.path}"):
            if number:
                return self._pages.one(view, run, int(number))
            if view:
                return self._pages.episodes(run, request.query)
            return self._pages.run(run) if run else self._pages.runs()

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["asset"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        text = files("orl_launcher.view").joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=ASSETS[name])
