"""As much of Ray as a question to its nodes takes: one node, which is this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def init(**_: Any) -> None:
    if not os.environ.get("RAY_ADDRESS"):
        raise ConnectionError("no cluster")


def shutdown() -> None: ...


def nodes() -> list[dict[str, Any]]:
    return [{"Alive": True, "NodeID": "1", "NodeManagerAddress": "127.0.0.1", "Resources": {}}]


class _Task:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def options(self, **_: Any) -> _Task:
        return self

    def remote(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def remote(function: Callable[..., Any]) -> _Task:
    return _Task(function)


def wait(asked: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
    return asked, []


def get(answer: Any) -> Any:
    return answer
