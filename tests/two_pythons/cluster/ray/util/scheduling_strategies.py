"""Where a task is to run; here there is one place."""

from __future__ import annotations

from typing import Any


class NodeAffinitySchedulingStrategy:
    def __init__(self, *_: Any, **__: Any) -> None: ...
