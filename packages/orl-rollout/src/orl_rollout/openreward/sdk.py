"""The `openreward` SDK, imported once and late (2.8 s), and the platform's addresses.

orl uses the types of its wire format and its header of secrets. It uses none of its requests, because they follow
redirects with the key. The module knows nothing of sessions or configurations.
"""

from __future__ import annotations

import functools
import importlib
import os
from urllib.parse import urlsplit


def session_url() -> str:
    """Return the address of sessions: `OPENREWARD_SESSION_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_SESSION_URL") or _subdomain("sessions")


def api_url() -> str:
    """Return the address of uploads: `OPENREWARD_API_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_API_URL") or _subdomain("api")


def _subdomain(name: str) -> str:
    url = urlsplit(os.environ.get("OPENREWARD_URL") or "https://openreward.ai")
    return url._replace(netloc=f"{name}.{url.netloc}").geturl()


@functools.cache
def prepare_sdk() -> None:
    """Import the used parts of the SDK. Call it on a thread: the import would block an event loop for seconds."""
    os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    importlib.import_module("openreward.api.sandboxes.secrets")
