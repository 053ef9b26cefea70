"""Why an agent began another conversation. A guess for reports, from texts alone: what trains does not depend on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from orl_core.messages import Message, ToolSpec
from orl_core.trajectory import BranchCause

from orl_gateway.dialects.exchange import ModelRequest, Reply
from orl_gateway.episode.matching import next_key

RECENT = 64  # turns that are compared: the cost of a request does not grow with the episode
TELLING = 16  # characters of a text that the model said, from which on a copy of it is no accident


class Said(Protocol):
    """A turn as this module reads it. `opening` is empty if the turn continues another one."""

    opening: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    reply: Reply


def cause_of_root(request: ModelRequest, turns: Sequence[Said]) -> BranchCause | None:
    """Return why `request` begins a conversation; None if it is the first."""
    if not turns:
        return None
    turns = turns[-RECENT:]
    roots = [turn for turn in turns if turn.opening]
    if any(turn.opening == request.messages and turn.tools == request.tools for turn in roots):
        return BranchCause.FORK
    if any(_head(turn.opening) == _head(request.messages) and turn.tools != request.tools for turn in roots):
        return BranchCause.TOOLS
    if any(_rewritten(turn.opening, request.messages) for turn in roots):
        return BranchCause.EDIT
    continues = any(message.role == "assistant" for message in request.messages)
    if continues and any(_spoken(turn.opening) == _spoken(request.messages) for turn in roots):
        return BranchCause.EDIT
    return BranchCause.COMPACTION if _quotes(request, turns) else BranchCause.SUB_AGENT


def _rewritten(before: Sequence[Message], now: Sequence[Message]) -> bool:
    """Return whether `now` is `before` with more text within: dspy keeps its whole history in one user message."""
    if not before or [message.role for message in before] != [message.role for message in now]:
        return False
    return all(inserted(then.text, later.text) for then, later in zip(before, now, strict=True))


def inserted(before: str, now: str) -> bool:
    """Return whether `now` is `before` with one text put into it.

    Texts are long, and it is asked of many turns: no character is looked at in Python.
    """
    if now == before or len(now) < len(before) or not before:
        return now == before
    start = bisect_left(range(len(before)), 1, key=lambda end: not now.startswith(before[: end + 1]))
    return now.endswith(before[start:])


def _head(messages: Sequence[Message]) -> list[Message]:
    """Return the messages before the first one of the assistant."""
    return [*takewhile(lambda message: message.role != "assistant", messages)]


def _spoken(messages: Sequence[Message]) -> list[Message]:
    return [message for message in _head(messages) if message.role != "system"]


def _quotes(request: ModelRequest, turns: Sequence[Said]) -> bool:
    """Return whether the request holds what the model said in one of the turns."""
    texts = [message.text for message in request.messages]
    replies = [turn.reply.text.strip() for turn in turns]
    if any(reply in text for reply in replies if len(reply) >= TELLING for text in texts):
        return True
    actions = {next_key(b"", message) for message in request.messages if message.role == "assistant"}
    return any(next_key(b"", turn.reply.message) in actions for turn in turns if turn.reply.calls)
