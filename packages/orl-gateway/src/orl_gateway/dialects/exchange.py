"""ModelRequest, Reply and RequestRefused: a request of an agent and its reply, free of any client's format.

The readers and writers of each API convert it. The module knows no token ids, no tree and no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct, field
from orl_core.errors import OrlError
from orl_core.messages import Message, TextBlock, ToolCall, ToolResult, ToolSpec

ReplyEnding = Literal["stop", "calls", "length", "stop_sequence"]
RefusalCode = Literal[
    "invalid_request",
    "unsupported",
    "context_length_exceeded",
    "budget_exhausted",
    "episode_over",
    "unknown_token",
    "not_served",
    "engine_fault",
]


class RequestRefused(OrlError):
    """A request that the gateway does not answer. `status` is the HTTP status, `code` names the reason."""

    def __init__(self, message: str, *, code: RefusalCode = "invalid_request", status: int = 400) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        self.status = status


LEAVE_OUT = "leave it out"


def unsupported(what: str, remedy: str = LEAVE_OUT) -> RequestRefused:
    """Return the refusal of a part of a request that the gateway cannot obey."""
    return RequestRefused(f"{what} is not supported by this gateway: {remedy}", code="unsupported")


class Link(Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """The last message of a conversation, and the conversation before it. Equal is what is one object.

    `call_ids` are the ids of the message's calls. `calls` counts the calls of the conversation. `answers` is the place
    among them of the call that the message answers, -1 if it answers none. `waiting` are the calls without a result by
    their ids: the place of each, and its tool.
    """

    before: Link | None
    message: Message
    call_ids: tuple[str, ...] = ()
    calls: int = 0
    answers: int = -1
    waiting: Mapping[str, tuple[int, str]] = {}

    def back(self) -> Iterator[Link]:
        """Yield the links of the conversation, the last one first."""
        link: Link | None = self
        while link is not None:
            yield link
            link = link.before


class Point(Struct, eq=False):
    """A request up to `part`, as the client wrote it: what was read, and the points after it by their parts."""

    part: bytes = b""
    before: Point | None = None
    last: Link | None = None
    after: dict[bytes, Point] = field(default_factory=dict[bytes, "Point"])

    def parts(self) -> list[bytes]:
        """Return the parts up to this one, without the first of the request."""
        point, parts = self, list[bytes]()
        while point.before is not None:
            parts.append(point.part)
            point = point.before
        return parts[-2::-1]


class ModelRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of the model by an agent.

    `messages` hold one system message at most, the first, and no two user messages in a row. Results are in the order
    of the calls that they answer. `namespaces` are those of tools that have one, by the tool's name here: Responses has
    them. `allows_calls` is false if the agent wants no call now; `allows_parallel` if it wants one at most. `demand`
    names the tool that must be called, "" is any, None demands nothing. `allowed` are the tools that may be called,
    None is all. `point` is the end of the conversation as `History` keeps it: two requests that begin with the same
    bytes share its beginning.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    namespaces: dict[str, str] = field(default_factory=dict[str, str])
    model: str = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    allows_calls: bool = True
    allows_parallel: bool = True
    demand: str | None = None
    allowed: frozenset[str] | None = None
    point: Point | None = None
    stream: bool = False
    stream_usage: bool = False


class SentCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call in a reply, with the id that the gateway made for it."""

    id: str
    call: ToolCall


class Reply(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer to an agent. `name` is unique in the episode. Counts are in token ids.

    `prompt_tokens` is the whole context; `cached_tokens` of it came from the prefix cache; `reasoning_tokens` are part
    of `sampled_tokens`. `created` is in seconds since the epoch. `stop_sequence` is the one that ended the text.
    `refused` are our own results of the calls that it does not hold, each with its position among all calls.
    """

    name: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[SentCall, ...] = ()
    ending: ReplyEnding = "stop"
    stop_sequence: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    reasoning_tokens: int = 0
    created: int = 0
    refused: tuple[tuple[int, ToolResult], ...] = ()

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """Return the results of an action of which nothing can be done."""
        return () if self.calls else tuple(result for _, result in self.refused)

    @property
    def message(self) -> Message:
        """Return the reply as clients send it back. Some drop its reasoning: it has none."""
        content = (TextBlock(text=self.text),) if self.text else ()
        return Message(role="assistant", content=content, calls=tuple(sent.call for sent in self.calls))

    def meets(self, demand: str | None) -> bool:
        """Return whether the reply holds the call that a request demands; see ModelRequest."""
        return demand is None or any(demand in ("", sent.call.name) for sent in self.calls)

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Return the ids of its calls."""
        return tuple(sent.id for sent in self.calls)
