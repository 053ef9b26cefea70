"""Commands in hints and examples, written as this program was started. Nothing but the standard library is imported."""

from __future__ import annotations

import os


def invocation() -> str:
    """Return the words that start this program as it was started: `uv run orl`, which `just` uses too, or `orl`."""
    return "uv run orl" if "UV_RUN_RECURSION_DEPTH" in os.environ else "orl"


def as_started(text: str) -> str:
    """Return examples with the command as this program was started."""
    return text.replace("  orl ", f"  {invocation()} ")
