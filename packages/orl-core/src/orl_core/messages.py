"""Messages of an episode: texts, tool calls, tool results, and malformed calls.

The module knows no token ids, wire formats or transports. One Message serves all roles: a conversation is a tuple.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field

from orl_core.errors import expect_each

Role = Literal["system", "user", "assistant", "tool"]


class TextBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="text"):
    """A piece of text."""

    text: str


class ImageBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="image"):
    """An image, base64 in `data`. The renderer refuses it loudly; it is never dropped."""

    data: str
    mime_type: str


Block = TextBlock | ImageBlock


class ToolSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call. `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="call"):
    """A well-formed call, as the model wrote it; nothing says yet that the tool exists.

    `id` is the one that the model sampled, "" if its format has none. A result shows the id of its call.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""


class FailureKind(StrEnum):
    """Kind of a mistake in a call: the first seven found by the parser, the others by the loop.

    MALFORMED is a break of the wire format's own syntax, if that is not JSON: stray text between tags, a parameter
    twice, a missing tag, arguments that are no Python literals. UNOPENED is a call that lacks its opening tag,
    IN_REASONING one inside reasoning that is never closed, each if the family's own parsers do not make it.
    """

    UNOPENED = "unopened"
    IN_REASONING = "in_reasoning"
    UNCLOSED = "unclosed"
    MALFORMED = "malformed"
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_NAME = "missing_name"
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    TOO_MANY_CALLS = "too_many_calls"


class ParseFailure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="failure"):
    """A call that cannot be made. `message` is one line that the model can learn from; `text` is what it wrote.

    `id` as for a call.
    """

    kind: FailureKind
    message: str
    text: str = ""
    name: str = ""
    id: str = ""


class Action(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of the model. `calls` keeps calls and failures in the order in which they were written."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall | ParseFailure, ...] = ()


Part = Literal["reasoning", "calls"]


class Span(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Range of a part of an action in its source: `[start:end]` of a text's characters, or of ids.

    Its delimiters belong to it, and so does the white space between it and the next part. What no span covers is text.
    """

    part: Part
    start: int
    end: int


class ToolResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to one call, by the environment or, where `failure` is set, by the loop in its place.

    `reward` is what the environment paid for this call; None means that it said nothing, which is not 0. `metadata` is
    JSON that the environment adds for people; the model does not see it.
    """

    name: str
    content: tuple[Block, ...] = ()
    reward: float | None = None
    finished: bool = False
    failure: FailureKind | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation. `calls` belongs to the assistant, `name` and `id` of its call to a result."""

    role: Role
    content: tuple[Block, ...] = ()
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    name: str = ""
    id: str = ""

    @property
    def text(self) -> str:
        """Return its text blocks, joined by newlines."""
        return text_of(self.content)


def text_of(content: tuple[Block, ...]) -> str:
    """Return the text blocks of `content`, joined by newlines. The caller has refused images before.

    Raises:
        TypeError: it holds something else than blocks; a plain text does.
    """
    blocks = expect_each(Block, "content", content, ", or make the message with text_message")
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def text_message(role: Role, text: str, *, name: str = "") -> Message:
    """Return a message of one text block."""
    return Message(role=role, content=(TextBlock(text=text),), name=name)
