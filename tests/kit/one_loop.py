"""One event loop for all examples of property tests: one and its threads for each took a third of their time."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Coroutine
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _runner() -> asyncio.Runner:
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    atexit.register(runner.close)
    return runner


def run(main: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, on the loop of this process."""
    return _runner().run(main, context=copy_context())
