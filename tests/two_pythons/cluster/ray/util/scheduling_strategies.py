"""The place of a task; here there is one."""

from __future__ import annotations

from typing import Any


class NodeAffinitySchedulingStrategy:
    def __init__(self, *_: Any, **__: Any) -> None: ...
