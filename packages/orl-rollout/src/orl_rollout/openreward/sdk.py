# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
"""The `openreward` SDK, imported once and late (2.8 s), and where the platform lives.

What is used of it: listings of tasks, the words of its wire format, and the keep-alive pings of its own thread, which
no busy event loop can starve. Those pings look proxies up in the environment, which would send loopback traffic to
them: that is switched off. The module knows nothing of sessions or configurations.
"""

from __future__ import annotations

import asyncio
import functools
import os
from urllib.parse import urlsplit


def session_url() -> str:
    """Where the platform serves sessions: `OPENREWARD_SESSION_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_SESSION_URL") or _subdomain("sessions")


def api_url() -> str:
    """Where the platform takes uploads: `OPENREWARD_API_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_API_URL") or _subdomain("api")


def _subdomain(name: str) -> str:
    url = urlsplit(os.environ.get("OPENREWARD_URL") or "https://openreward.ai")
    return url._replace(netloc=f"{name}.{url.netloc}").geturl()


@functools.cache
def prepare_sdk() -> None:
    """Import the SDK and correct it. Call it on a thread: the import would hold an event loop for seconds."""
    os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    from openreward.api._session import ping

    pings = ping.ping_thread
    loop = pings._ensure_started()
    client = asyncio.run_coroutine_threadsafe(pings._get_client(), loop).result()
    client._trust_env = False
