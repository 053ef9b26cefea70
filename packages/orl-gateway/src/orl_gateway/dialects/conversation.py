"""A conversation in the form of ModelRequest, made message by message, and the memory of those of one episode.

Clients send their whole history with each request. A part that stood in an earlier one is not read again (law L5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs
from orl_core.messages import Message, TextBlock, ToolCall

from orl_gateway.dialects.bodies import LINES, Bodies, lasting
from orl_gateway.dialects.exchange import ModelRequest, Reply, RequestRefused
from orl_gateway.dialects.reading import unsupported

T = TypeVar("T")

TOOL_LISTS = 64  # lists of tools that are remembered


class Conversation:
    """Collects the messages of a request in the form of ModelRequest.

    System messages at the beginning become one; a later one is shown as a user's, because chat templates have no place
    for it. User messages in a row become one, and so do assistant messages: an action is whole.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._call_ids: list[tuple[str, ...]] = []
        self._places: dict[str, tuple[int, str]] = {}  # order of a call among all calls, and its tool, by its id
        self._answers: list[int] = []  # order of the call that each message answers, -1 where it answers none

    def system(self, blocks: Sequence[TextBlock]) -> None:
        """Add a system or developer message."""
        if all(message.role == "system" for message in self._messages):
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
        """Add what the model said. A call is its id, the tool's name and its arguments.

        Raises:
            RequestRefused: two calls have one id.
        """
        for id_, name, _ in calls:
            if id_ in self._places:
                raise RequestRefused(f"two calls of the conversation have the id `{id_}`")
            self._places[id_] = len(self._places), name
        made = tuple(ToolCall(name=name, arguments=arguments) for _, name, arguments in calls)
        said = Message(role="assistant", content=tuple(blocks), reasoning=reasoning, calls=made)
        self._join(said, "\n", tuple(id_ for id_, _, _ in calls))

    def result(self, id_: str, blocks: Sequence[TextBlock]) -> None:
        """Add the result of the call `id_`, among the results before it in the order of the calls.

        Raises:
            RequestRefused: no call has this id.
        """
        if id_ not in self._places:
            raise RequestRefused(f"a tool result answers the call `{id_}`, which the conversation does not have")
        order, name = self._places[id_]
        place = len(self._answers)
        while place and self._answers[place - 1] > order:
            place -= 1
        self._messages.insert(place, Message(role="tool", content=tuple(blocks), name=name))
        self._call_ids.insert(place, ())
        self._answers.insert(place, order)

    def messages(self) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
        """Return the messages, and the ids of the calls of each.

        Raises:
            RequestRefused: there is none, or the last one is the assistant's.
        """
        if not self._messages or all(message.role == "system" for message in self._messages):
            raise RequestRefused("the conversation has no message that the model could answer")
        if self._messages[-1].role == "assistant":
            raise unsupported("a conversation that ends with an assistant message, which the model would continue,")
        return tuple(self._messages), tuple(self._call_ids)

    def copy(self) -> Conversation:
        """Return a conversation that says the same, and goes on by itself."""
        copied = Conversation()
        copied._messages, copied._call_ids = [*self._messages], [*self._call_ids]
        copied._places, copied._answers = {**self._places}, [*self._answers]
        return copied

    def _join(self, message: Message, separator: str, call_ids: tuple[str, ...] = ()) -> None:
        """Add a message, to the one before where both have one role."""
        if not self._messages or self._messages[-1].role != message.role:
            self._add(message, call_ids)
            return
        last = self._messages[-1]
        text = separator.join(part for part in (last.text, message.text) if part)
        self._messages[-1] = structs.replace(
            last,
            content=(TextBlock(text=text),) if text else (),
            reasoning="\n".join(part for part in (last.reasoning, message.reasoning) if part),
            calls=(*last.calls, *message.calls),
        )
        self._call_ids[-1] = (*self._call_ids[-1], *call_ids)

    def _add(self, message: Message, call_ids: tuple[str, ...] = ()) -> None:
        self._messages.append(message)
        self._call_ids.append(call_ids)
        self._answers.append(-1)


class _Line(Struct, frozen=True):
    """A conversation, and the parts of a request that it was made of, as the client wrote them."""

    dialect: str
    parts: list[bytes]
    conversation: Conversation


class History:
    """Requests of one episode that were read before. Equal bytes are not read a second time.

    `replies` are by their names, each with its request, of APIs whose clients may name one, or a part of it, by its id.
    `samples_forced_calls` tells that a call which a client demands is sampled like any other.
    """

    def __init__(self) -> None:
        self.bodies = Bodies()
        self.samples_forced_calls = False
        self.replies: dict[str, tuple[ModelRequest, Reply]] = {}
        self._lines: deque[_Line] = deque(maxlen=LINES)
        self._tools: dict[tuple[str, bytes], Any] = {}

    def conversation(
        self, dialect: str, parts: list[bytes], add: Callable[[Conversation, int, bytes], None]
    ) -> Conversation:
        """Return the conversation of `parts`; `add` reads one of them, given its index, into the conversation.

        Raises:
            RequestRefused: as `add` does.
        """
        known = next(
            (line for line in self._lines if line.dialect == dialect and line.parts == parts[: len(line.parts)]), None
        )
        conversation = known.conversation.copy() if known else Conversation()
        read = known.parts if known else []
        kept = len(read) + lasting(parts[len(read) :])
        for index in range(len(read), kept):
            add(conversation, index, parts[index])
        self._lines.appendleft(_Line(dialect, [*read, *parts[len(read) : kept]], conversation))
        conversation = conversation.copy() if kept < len(parts) else conversation
        for index in range(kept, len(parts)):
            add(conversation, index, parts[index])
        return conversation

    def tools(self, dialect: str, text: bytes, read: Callable[[bytes], T]) -> T:
        """Return the tools of `text`, which `read` reads.

        Raises:
            RequestRefused: as `read` does.
        """
        found = self._tools.get((dialect, text))
        if found is None:
            if len(self._tools) >= TOOL_LISTS:
                self._tools.clear()
            found = self._tools[dialect, text] = read(text)
        return found
