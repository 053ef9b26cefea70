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

from orl_launcher.view.catalog import Catalog
from orl_launcher.view.index import BrokenIndexError, Indexes
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
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Viewer:
    """The viewer of the runs at `root`. `cache` takes the indexes of journals; `token` opens the pages."""

    def __init__(self, root: Path, cache: Path, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._catalog = Catalog(root)
        self._pages = Pages(self._catalog, Indexes(cache), Address(f"/{self.token}/"))

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard])
        get = app.router.add_get
        get("/{token}/", self._answer(lambda _: self._pages.runs()))
        get("/{token}/run/{run}", self._answer(lambda request: self._pages.run(request.match_info["run"])))
        get("/{token}/run/{run}/episodes", self._answer(self._episodes))
        for view in ("episode", "group", "task"):
            get(f"/{{token}}/run/{{run}}/{view}/{{number:[0-9]{{1,12}}}}", self._answer(self._one(view)))
        get("/{token}/{asset:[a-z]+[.][a-z]+}", self._asset)
        return app

    def check(self) -> None:
        """Refuse a folder that does not exist.

        Raises:
            ConfigError: it does not.
        """
        self._catalog.runs()

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

    def _answer(self, make: Callable[[web.Request], str]) -> Handler:
        """Return the handler of a page that is made on a thread."""

        async def handle(request: web.Request) -> web.StreamResponse:
            status = 200
            try:
                text = await asyncio.to_thread(_within, make, request)
            except NotFoundError as fault:
                status, text = 404, self._pages.problem(str(fault))
            except ConfigError as fault:
                status, text = 400, self._pages.problem(str(fault))
            except OrlError as fault:
                status, text = 500, self._pages.problem(str(fault))
            return web.Response(status=status, text=text, content_type="text/html")

        return handle

    def _episodes(self, request: web.Request) -> str:
        return self._pages.episodes(request.match_info["run"], request.query)

    def _one(self, view: str) -> Callable[[web.Request], str]:
        make: Callable[[str, int], str] = getattr(self._pages, view)
        return lambda request: make(request.match_info["run"], int(request.match_info["number"]))

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["asset"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        text = files("orl_launcher.view").joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=ASSETS[name])


def _within(make: Callable[[web.Request], str], request: web.Request) -> str:
    """Return a page. Files of a run may hold anything: what they break is this page alone."""
    with boundary(OrlError, f"making the page {request.rel_url.path}"):
        try:
            return make(request)
        except BrokenIndexError:
            return make(request)
