"""ModelRequest, Reply and RequestRefused: a request of an agent and its reply, free of any client's format.

The readers and writers of each API convert it. The module knows no token ids, no tree and no HTTP.

Clients send their whole history with each request. A message that begins like an earlier request is not read again (law
L5): `History` is a trie of the messages as the client wrote them, and each of its points has what was read up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Raw, Struct, field, structs
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


REMEMBERED = 1 << 25  # bytes of messages, after which the memory of an episode is cleared
# What the providers say of calls without a result. Clients look for these words.
_UNANSWERED = {
    "chat": "The following tool_call_ids did not have response messages",
    "responses": "No tool output found for function call",
    "anthropic": "`tool_use` ids were found without `tool_result` blocks immediately after",
}
_ONE_RESULT = "Each call must have a single result: send it, or leave the call out."


class Conversation:
    """Collects the messages of a request in the form of ModelRequest. `last` is the last one, or None.

    `sampled` are the ids that the model gave to calls, by those that the client was sent.

    System messages at the beginning become one; a later one is shown as a user's, because chat templates have no place
    for it. User messages in a row become one, and so do assistant messages: an action is whole.
    """

    def __init__(self, last: Link | None, sampled: Mapping[str, str]) -> None:
        self.last = last
        self._sampled = sampled

    def system(self, blocks: Sequence[TextBlock]) -> None:
        """Add a system or developer message."""
        if self.last is None or self.last.message.role == "system":
            text = "\n\n".join(block.text for block in blocks)
            self._join(Message(role="system", content=(TextBlock(text=text),) if text else ()), "\n\n")
        else:
            self.user(blocks)

    def user(self, blocks: Sequence[TextBlock]) -> None:
        """Add a user message."""
        self._join(Message(role="user", content=tuple(blocks)), "\n")

    def assistant(
        self,
        blocks: Sequence[TextBlock] = (),
        *,
        reasoning: str = "",
        calls: Sequence[tuple[str, str, dict[str, Any]]] = (),
    ) -> None:
        """Add what the model said. A call is its id, the tool's name and its arguments."""
        ids = tuple(id_ for id_, _, _ in calls)
        for index, id_ in enumerate(ids):
            if id_ in ids[:index] or self._knows(id_):
                raise RequestRefused(f"two calls of the conversation have the id `{id_}`")
        actions = tuple(
            ToolCall(name=name, arguments=arguments, id=self._sampled.get(id_, "")) for id_, name, arguments in calls
        )
        self._join(Message(role="assistant", content=tuple(blocks), reasoning=reasoning, calls=actions), "\n", ids)

    def result(self, id_: str, blocks: Sequence[TextBlock]) -> None:
        """Add the result of the call `id_`, among the results before it in the order of the calls."""
        waiting: Mapping[str, tuple[int, str]] = self.last.waiting if self.last else {}
        if id_ not in waiting and self._knows(id_):
            raise RequestRefused(f"two tool results answer the call `{id_}`. {_ONE_RESULT}")
        if id_ not in waiting:
            raise RequestRefused(f"a tool result answers the call `{id_}`, which the conversation does not have")
        order, name = waiting[id_]
        later: list[Link] = []
        while self.last is not None and self.last.answers > order:
            later.append(self.last)
            self.last = self.last.before
        self._add(Message(role="tool", content=tuple(blocks), name=name), answers=order)
        for link in reversed(later):
            self._add(link.message, answers=link.answers)

    def messages(self, api: str) -> tuple[Message, ...]:
        """Return the whole conversation; `api` names the client's API."""
        if self.last is not None and self.last.waiting:
            missing = ", ".join(self.last.waiting)
            raise RequestRefused(f"{_UNANSWERED[api]}: {missing}. {_ONE_RESULT}")
        if self.last is None or self.last.message.role == "system":
            raise RequestRefused("the conversation has no message that the model could answer")
        if self.last.message.role == "assistant":
            raise unsupported("a conversation that ends with an assistant message, which the model would continue,")
        return tuple(link.message for link in self.last.back())[::-1]

    def _knows(self, id_: str) -> bool:
        return any(id_ in link.call_ids for link in (self.last.back() if self.last else ()))

    def _join(self, message: Message, separator: str, call_ids: tuple[str, ...] = ()) -> None:
        """Add a message, to the one before if both have one role."""
        last = self.last
        if last is not None and last.message.role == message.role:
            before, call_ids = last.message, (*last.call_ids, *call_ids)
            text = separator.join(part for part in (before.text, message.text) if part)
            message = structs.replace(
                before,
                content=(TextBlock(text=text),) if text else (),
                reasoning="\n".join(part for part in (before.reasoning, message.reasoning) if part),
                calls=(*before.calls, *message.calls),
            )
            self.last = last.before
        self._add(message, call_ids)

    def _add(self, message: Message, call_ids: tuple[str, ...] = (), answers: int = -1) -> None:
        last = self.last
        first = last.calls if last else 0
        numbered = enumerate(zip(call_ids, message.calls, strict=False), first)
        waiting: dict[str, tuple[int, str]] = {**last.waiting} if last else {}
        waiting |= {id_: (place, call.name) for place, (id_, call) in numbered}
        waiting = {id_: call for id_, call in waiting.items() if call[0] != answers}
        calls = first + len(call_ids)
        self.last = Link(before=last, message=message, call_ids=call_ids, calls=calls, answers=answers, waiting=waiting)


class History:
    """Requests of one episode that were read before. Equal bytes are not read a second time.

    `replies` are by their names, each with its request, of APIs whose clients may name one, or a part of it, by its id.
    `sampled` are the ids that the model gave to calls, by those that the client was sent.
    `samples_forced_calls` tells that a call which a client demands is sampled like any other.
    """

    def __init__(self) -> None:
        self.samples_forced_calls = False
        self.replies: dict[str, tuple[ModelRequest, Reply]] = {}
        self.sampled: dict[str, str] = {}
        self._begun: dict[tuple[str, bytes], tuple[Any, Point]] = {}  # by API and tools, which are part of a key
        self._held = 0

    def read(
        self,
        api: str,
        tools: Raw,
        read_tools: Callable[[Raw], dict[str, Any]],
        parts: Iterable[Raw | bytes],
        add: Callable[[Conversation, int, bytes], None],
    ) -> dict[str, Any]:
        """Return the fields of ModelRequest that hold tools and conversation.

        `read_tools` returns those of `tools`; `add` reads one of `parts`, given its index, into a conversation.
        """
        if self._held > REMEMBERED:
            self._begun.clear()
            self._held = 0
        key = api, bytes(tools)
        if key not in self._begun:
            self._begun[key] = read_tools(tools), Point()
            self._held += len(key[1])
        fields, point = self._begun[key]
        for index, part in enumerate(map(bytes, parts)):
            later = point.after.get(part)
            if later is None:
                conversation = Conversation(point.last, self.sampled)
                add(conversation, index, part)
                later = point.after[part] = Point(part=part, before=point, last=conversation.last)
                self._held += len(part)
            point = later
        return {**fields, "messages": Conversation(point.last, self.sampled).messages(api), "point": point}
