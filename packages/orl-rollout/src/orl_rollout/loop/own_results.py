"""Results that the loop writes itself, where the environment gave none that can be used.

A trajectory then has a result for every call that was made, so that a journal and a server count the same.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from orl_core.errors import SessionAnswerError, SessionError
from orl_core.messages import ParseFailure, TextBlock, ToolResult


def refused(failure: ParseFailure) -> ToolResult:
    """Return the result of a call that cannot be made."""
    text = f"Error: {failure.message}"
    return ToolResult(name=failure.name or "error", content=(TextBlock(text=text),), failure=failure.kind)


def failed(name: str, fault: SessionError) -> ToolResult:
    """Return the result of a call that failed. It holds the server's answer if that is not usable."""
    answer = fault.answer if isinstance(fault, SessionAnswerError) else ""
    texts = (f"Error: {fault}", *([answer] if answer else []))
    return ToolResult(name=name, content=tuple(TextBlock(text=text) for text in texts))


@contextmanager
def keep_unusable(results: list[ToolResult], name: str) -> Generator[None]:
    """Append the server's answer to `results` if the block raises because that answer is not usable."""
    try:
        yield
    except SessionAnswerError as fault:
        results.append(failed(name, fault))
        raise
