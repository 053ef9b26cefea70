# pyright: reportMissingTypeStubs=false
"""Decode the answers of an environment server into our types. Pure: no transport, no SDK session.

Servers differ in age and language: unknown fields are ignored, and missing ones have the protocol's defaults. A block
of an unknown kind is refused, never dropped. Text becomes valid Unicode here (a lone surrogate becomes U+FFFD).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec import Struct, field
from orl_core.errors import SessionAnswerError, SessionRefused
from orl_core.messages import Block, FailureKind, ImageBlock, Message, TextBlock, ToolCall, ToolResult, ToolSpec
from orl_core.text import clean, map_strings

if TYPE_CHECKING:
    from openreward.api.environments import types as sdk


class _Text(Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class _Image(Struct, frozen=True, kw_only=True, tag="image"):
    data: str
    mime_type: str = field(name="mimeType")


class _Reasoning(Struct, frozen=True, kw_only=True, tag="reasoning"):
    text: str


class _Call(Struct, frozen=True, kw_only=True, tag="tool_call"):
    id: str
    name: str
    input: dict[str, Any]


class _Result(Struct, frozen=True, kw_only=True, tag="tool_result"):
    tool_call_id: str
    blocks: tuple[_Text | _Image, ...] = ()


_Block = _Text | _Image | _Reasoning | _Call | _Result


class _Said(Struct, frozen=True, kw_only=True):
    role: Literal["system", "user", "assistant"]
    blocks: tuple[_Block, ...] = ()


class _Output(Struct, frozen=True, kw_only=True):
    blocks: tuple[_Text | _Image, ...] = ()
    reward: float | None = None
    finished: bool = False
    metadata: Any = None


class CallReply(Struct, frozen=True, kw_only=True):
    """The reply to a call: an output, or why the call was refused before it ran."""

    ok: bool
    output: _Output | None = None
    error: str = ""
    reason: str | None = None


class _Tool(Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class TerminalTool(Struct, frozen=True, kw_only=True):
    """The hidden tool that takes a plain answer as its argument `arg`, or no argument if `arg` is None."""

    name: str
    arg: str | None = None


class ToolListing(Struct, frozen=True, kw_only=True):
    """The tools and abilities of a session."""

    tools: tuple[_Tool, ...] = ()
    terminal_tool: TerminalTool | None = None
    supports_score_group: bool = False
    message_block_types: tuple[str, ...] | None = None

    @property
    def takes_calls(self) -> bool:
        """Return whether a conversation sent to the server may hold blocks of calls, results and reasoning."""
        return {"reasoning", "tool_call", "tool_result"} <= set(self.message_block_types or ())

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model may see: the terminal tool is not among them."""
        hidden = self.terminal_tool.name if self.terminal_tool else None
        return tuple(_spec(tool) for tool in self.tools if tool.name != hidden)


def _spec(tool: _Tool) -> ToolSpec:
    description = clean(tool.description or "")
    if not tool.input_schema:
        return ToolSpec(name=tool.name, description=description)
    return ToolSpec(name=tool.name, description=description, parameters=tool.input_schema)


def decode_listing(reply: object) -> ToolListing:
    """Decode the reply to `/task_tools` or `/tools`."""
    return msgspec.convert(reply, ToolListing)


def result_of(name: str, reply: object, seconds: float) -> ToolResult:
    """Return the result of calling `name`.

    Raises:
        SessionRefused: the episode was already over.
        SessionAnswerError: the reply cannot be used (a reward that is not finite).
        msgspec.ValidationError: the reply is not of the protocol.
    """
    decoded = msgspec.convert(reply, CallReply)
    if not decoded.ok or decoded.output is None:
        text = clean(decoded.error) or "the call was refused"
        content = (TextBlock(text=f"Error: {text}"),)
        return ToolResult(name=name, content=content, failure=_failure(decoded), seconds=seconds)
    output = decoded.output
    if output.reward is not None and not math.isfinite(output.reward):
        raise SessionAnswerError(f"tool `{name}` paid a reward that is not finite: {output.reward}")
    content = tuple(_block(block) for block in output.blocks)
    return ToolResult(
        name=name,
        content=content,
        reward=output.reward,
        finished=output.finished,
        metadata=_metadata(output.metadata),
        seconds=seconds,
    )


def _metadata(given: object) -> dict[str, Any]:
    """Return the metadata of an answer: an object as it is, anything else under the key `value`."""
    if given is None:
        return {}
    valid = map_strings(given, clean)
    return cast("dict[str, Any]", valid) if isinstance(valid, dict) else {"value": valid}


def _block(block: _Text | _Image) -> Block:
    if isinstance(block, _Text):
        return TextBlock(text=clean(block.text))
    return ImageBlock(data=block.data, mime_type=block.mime_type)


def _failure(reply: CallReply) -> FailureKind:
    """Return the model's mistake behind a refused call. Without a reason, the error's text decides."""
    if reply.reason in {"input_validation", "bad_input_shape"} or (
        reply.reason is None and reply.error.startswith("Tool input validation error")
    ):
        return FailureKind.INVALID_ARGUMENTS
    if reply.reason == "not_found" or (reply.reason is None and "is not a valid tool" in reply.error):
        return FailureKind.UNKNOWN_TOOL
    raise SessionRefused(f"the call was refused ({reply.reason or 'no reason'}): {clean(reply.error)}")


class _Score(Struct, frozen=True, kw_only=True):
    reward: float


class _Scores(Struct, frozen=True, kw_only=True):
    scores: tuple[_Score, ...]


def scores_of(reply: object, count: int) -> tuple[float, ...]:
    """Return the numbers of a scored group of `count`, from the reply to `/score_group`.

    Raises:
        SessionAnswerError: there are more or fewer, or one is not finite.
        msgspec.ValidationError: the reply is not of the protocol.
    """
    numbers = tuple(score.reward for score in msgspec.convert(reply, _Scores).scores)
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise SessionAnswerError(f"{count} conversations were scored {list(numbers)}, not one finite number each")
    return numbers


def candidate_of(conversation: Sequence[Message], *, calls: bool) -> sdk.GroupCandidate:
    """Return a conversation in the SDK's types, tool results in the user's messages.

    If the server takes no `calls`, results are text, and calls and reasoning are left out.
    """
    from openreward.api.environments import types as sdk

    said: list[sdk.Message] = []
    waiting: list[str] = []  # the ids of calls whose results are to come
    made = 0
    for message in conversation:
        blocks: list[Any] = [_said(block) for block in message.content]
        if calls and message.role == "assistant":
            waiting = [f"call_{made + number}" for number in range(len(message.calls))]
            made += len(waiting)
            blocks = [sdk.ReasoningBlock(text=message.reasoning)] * bool(message.reasoning) + blocks
            blocks += [
                sdk.ToolCallBlock(id=name, name=call.name, input=call.arguments)
                for name, call in zip(waiting, message.calls, strict=True)
            ]
        elif calls and message.role == "tool" and waiting:
            blocks = [sdk.ToolResultBlock(tool_call_id=waiting.pop(0), blocks=blocks)]
        if blocks:
            said.append(sdk.Message(role="user" if message.role == "tool" else message.role, blocks=blocks))
    return sdk.GroupCandidate(messages=said)


def _said(block: Block) -> sdk.TextBlock | sdk.ImageBlock:
    from openreward.api.environments import types as sdk

    if isinstance(block, TextBlock):
        return sdk.TextBlock(text=block.text)
    return sdk.ImageBlock(data=block.data, mimeType=block.mime_type)


def messages_of(reply: object) -> tuple[Message, ...]:
    """Return the opening conversation in our types, from the reply to `/messages`.

    The platform keeps tool results in the user's messages. Here each becomes a message of role `tool`, before the rest.

    Raises:
        msgspec.ValidationError: the reply is not of the protocol.
    """
    names: dict[str, str] = {}
    messages: list[Message] = []
    for said in msgspec.convert(reply, tuple[_Said, ...]):
        calls = [block for block in said.blocks if isinstance(block, _Call)]
        names.update({call.id: call.name for call in calls})
        messages.extend(
            Message(role="tool", name=names.get(block.tool_call_id, ""), content=_content(block.blocks))
            for block in said.blocks
            if isinstance(block, _Result)
        )
        content = _content(said.blocks)
        reasoning = "\n\n".join(clean(block.text) for block in said.blocks if isinstance(block, _Reasoning))
        if content or calls or reasoning:
            made = tuple(ToolCall(name=call.name, arguments=call.input) for call in calls)
            messages.append(Message(role=said.role, content=content, reasoning=reasoning, calls=made))
    return tuple(messages)


def prompt_of(reply: object) -> tuple[Message, ...]:
    """Return one message of the user from the reply to `/prompt`, of servers without conversations."""
    return messages_of([{"role": "user", "blocks": reply}])


def _content(blocks: Iterable[_Block]) -> tuple[Block, ...]:
    return tuple(_block(block) for block in blocks if isinstance(block, _Text | _Image))
