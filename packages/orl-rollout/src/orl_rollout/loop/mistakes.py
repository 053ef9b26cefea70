"""Mistakes of the model in one rollout: each gets a reply that names it, or ends the rollout.

The limits say how many replies there are. Results that the environment does not give are written here too: a trajectory
has a result for every call that was made, so that a journal and a server count the same. The module knows no session
and no engine.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from orl_core import Limits, Message, ParseFailure, StopDetail, StopReason, TextBlock, ToolResult, text_message
from orl_core.errors import SessionAnswerError, SessionError

Ending = StopReason | StopDetail
Step = tuple[Ending | None, tuple[Message, ...]]  # how the rollout ends, or the messages that answer an action


class Mistakes:
    """Count the mistakes of one rollout. `user_turns` tells whether a user message can follow an action."""

    def __init__(self, limits: Limits, *, user_turns: bool) -> None:
        self._limits = limits
        self._user_turns = user_turns
        self._nudges = 0
        self._invalid = 0

    def no_call(self, tools: str, *, answers: bool) -> Step:
        """Answer an action without a call: a reminder that lists the tools, or the end.

        `answers`: a text would have been an answer, but this one is empty.
        """
        self._nudges += 1
        most = self._limits.max_nudges
        if not self._user_turns or (most is not None and self._nudges > most):
            return StopDetail.NO_CALL, ()
        empty = "Your answer is empty. Write one, or call a tool." if answers else "Go on by calling a tool."
        return None, (text_message("user", f"{empty} The tools are: {tools}."),)

    def cut_action(self, tokens: int) -> Step:
        """Answer an action that was cut after so many ids, the budget of its turn. Nothing in it is done."""
        gives_up = self.gives_up(refused=True)
        if gives_up or not self._limits.retry_cut_actions or not self._user_turns:
            return StopDetail.CUT_ACTION, ()
        text = f"Error: your answer was cut after {tokens} tokens, and nothing in it was done. Be brief."
        return None, (text_message("user", text),)

    def gives_up(self, *, refused: bool) -> bool:
        """Count the turns in a row that did nothing. Return whether they reach `max_invalid`."""
        self._invalid = self._invalid + 1 if refused else 0
        most = self._limits.max_invalid
        return most is not None and self._invalid >= most


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
