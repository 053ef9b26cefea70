"""The session protocol: one episode of one environment. OpenReward's SDK and ten-line fakes fit it.

Validation of calls, their order, nudges and cuts belong to the loop. A session raises `SessionError` for broken
machinery only; what the environment has to say to a wrong call is a ToolResult.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from orl_core import Action, Message, ParseFailure, Task, ToolCall, ToolResult, ToolSpec
from orl_core.errors import SessionUnavailable


class Unserved(SessionUnavailable):
    """The server is busy or away. Raised by `open`, nothing was begun: the same may succeed later.

    `retry_after` is what the server asks to wait, in seconds; None if it does not say.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(Unserved):
    """The server refuses for being busy (429)."""


class SessionLost(Unserved):
    """The connection broke, a proxy answers for a server that is away (502 to 504), or the session is unknown there.

    Servers forget their sessions when they restart: a call is then answered 404 or 410.
    """


class Opening(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The beginning of an episode: the first messages, the tools, and whether a plain answer ends it (`@terminal`).

    `judges_any_answer`: nobody reads the answer but a reward function, which may get an empty one.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    accepts_text_answer: bool = False
    judges_any_answer: bool = False

    def takes(self, action: Action) -> bool:
        """Return whether the text of an action is an answer: it is not empty, and no call was lost in it."""
        lost = any(isinstance(call, ParseFailure) for call in action.calls)
        return self.judges_any_answer or (self.accepts_text_answer and bool(action.text) and not lost)


class Session(Protocol):
    """One episode. `open` once, then calls, then `close` once, on every path."""

    async def open(self, task: Task) -> Opening:
        """Start the episode of `task`. A failed open leaves nothing behind that `close` would not clean up.

        Raises:
            Overloaded: the server has no room for another episode now.
            SessionLost: the server is away.
            SessionError: the environment does not start.
        """
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Call a tool that `open` listed, with arguments that fit its schema. Never repeated.

        Raises:
            SessionLost: the episode is gone with its connection or its server.
            SessionError: the call failed in the machinery; the state of the episode is unknown from here on.
        """
        ...

    async def answer(self, text: str) -> ToolResult:
        """End the episode with a plain answer, where the opening said `accepts_text_answer`.

        Raises:
            SessionError: as for `call`.
        """
        ...

    async def close(self) -> None:
        """Release the episode. Safe after a failed or cancelled `open`; does not raise SessionError."""
        ...
