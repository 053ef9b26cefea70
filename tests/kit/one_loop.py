"""One event loop for all examples of property tests: one and its threads for each took a third of their time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_loop = cache(asyncio.new_event_loop)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, on the loop of this process and without its handler of Ctrl-C."""
    return _loop().run_until_complete(_loop().create_task(main, context=copy_context()))
