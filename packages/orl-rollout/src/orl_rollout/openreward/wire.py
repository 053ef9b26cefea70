"""Decode the answers of an environment server into our types. Pure: no transport, no SDK session.

Servers differ in age and language: unknown fields are ignored, and missing ones have the protocol's defaults. A block
of an unknown kind is refused, never dropped. Text is valid Unicode already (`remote`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct, field
from orl_core.errors import SessionAnswerError, SessionRefused
from orl_core.messages import Block, FailureKind, ImageBlock, Message, TextBlock, ToolCall, ToolResult, ToolSpec


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


class _Message(Struct, frozen=True, kw_only=True):
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
    """The tools and abilities of a session: the reply to `/task_tools` or `/tools`."""

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
        return tuple(
            ToolSpec(
                name=tool.name,
                description=tool.description or "",
                **({"parameters": tool.input_schema} if tool.input_schema else {}),
            )
            for tool in self.tools
            if tool.name != hidden
        )


def result_of(name: str, reply: object, seconds: float) -> ToolResult:
    """Return the result of calling `name`.

    Raises:
        SessionRefused: the episode was already over.
        SessionAnswerError: the reply cannot be used (a reward that is not finite).
        msgspec.ValidationError: the reply is not of the protocol.
    """
    decoded = msgspec.convert(reply, CallReply)
    if not decoded.ok or decoded.output is None:
        content = (TextBlock(text=f"Error: {decoded.error or 'the call was refused'}"),)
        return ToolResult(name=name, content=content, failure=_failure(decoded), seconds=seconds)
    output = decoded.output
    if output.reward is not None and not math.isfinite(output.reward):
        raise SessionAnswerError(f"tool `{name}` paid a reward that is not finite: {output.reward}")
    metadata: Any = {} if output.metadata is None else output.metadata
    return ToolResult(
        name=name,
        content=_content(output.blocks),
        reward=output.reward,
        finished=output.finished,
        metadata=cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {"value": metadata},
        seconds=seconds,
    )


def _failure(reply: CallReply) -> FailureKind:
    """Return the model's mistake behind a refused call. Without a reason, the error's text decides."""
    if reply.reason in {"input_validation", "bad_input_shape"} or (
        reply.reason is None and reply.error.startswith("Tool input validation error")
    ):
        return FailureKind.INVALID_ARGUMENTS
    if reply.reason == "not_found" or (reply.reason is None and "is not a valid tool" in reply.error):
        return FailureKind.UNKNOWN_TOOL
    raise SessionRefused(f"the call was refused ({reply.reason or 'no reason'}): {reply.error}")


class _Score(Struct, frozen=True, kw_only=True):
    reward: float


class _Scores(Struct, frozen=True, kw_only=True):
    scores: tuple[_Score, ...]


def scores_of(reply: object, count: int) -> tuple[float, ...]:
    """Return the numbers of a scored group of `count`, from the reply to `/score_group`."""
    numbers = tuple(score.reward for score in msgspec.convert(reply, _Scores).scores)
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise SessionAnswerError(f"{count} conversations were scored {list(numbers)}, not one finite number each")
    return numbers


def candidate_of(conversation: Sequence[Message], *, calls: bool) -> dict[str, Any]:
    """Return a conversation as the server takes it, tool results in the user's messages.

    If the server takes no `calls`, results are text, and calls and reasoning are left out.
    """
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []  # the ids of calls whose results are to come
    count = 0
    for message in conversation:
        blocks: list[dict[str, Any]] = [_sent(block) for block in message.content]
        if calls and message.role == "assistant":
            waiting = [f"call_{count + number}" for number in range(len(message.calls))]
            count += len(waiting)
            blocks = [{"type": "reasoning", "text": message.reasoning}] * bool(message.reasoning) + blocks
            blocks += [
                {"type": "tool_call", "id": name, "name": call.name, "input": call.arguments}
                for name, call in zip(waiting, message.calls, strict=True)
            ]
        elif calls and message.role == "tool" and waiting:
            blocks = [{"type": "tool_result", "tool_call_id": waiting.pop(0), "blocks": blocks}]
        if blocks:
            messages.append({"role": "user" if message.role == "tool" else message.role, "blocks": blocks})
    return {"messages": messages}


def _sent(block: Block) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image", "data": block.data, "mimeType": block.mime_type}


def messages_of(reply: object) -> tuple[Message, ...]:
    """Return the opening conversation in our types, from the reply to `/messages`.

    The platform keeps tool results in the user's messages. Here each becomes a message of role `tool`, and those of an
    action follow it in the order of its calls.
    """
    conversation = msgspec.convert(reply, tuple[_Message, ...])
    blocks = [block for sent in conversation for block in sent.blocks]
    results = [block for block in blocks if isinstance(block, _Result)]
    call_ids = Counter(block.id for block in blocks if isinstance(block, _Call))
    result_ids = Counter(block.tool_call_id for block in results)
    if call_ids != result_ids:
        raise SessionAnswerError(
            f"the opening's calls {[*(call_ids - result_ids)]} have no result, its results "
            f"{[*(result_ids - call_ids)]} no call of their own: send one result for each call"
        )
    messages: list[Message] = []
    for sent in conversation:
        calls = [block for block in sent.blocks if isinstance(block, _Call)]
        content = _content(sent.blocks)
        reasoning = "\n\n".join(block.text for block in sent.blocks if isinstance(block, _Reasoning))
        if content or calls or reasoning:
            own = tuple(ToolCall(name=call.name, arguments=call.input) for call in calls)
            messages.append(Message(role=sent.role, content=content, reasoning=reasoning, calls=own))
        for call in calls:
            result = next(result for result in results if result.tool_call_id == call.id)
            results.remove(result)
            messages.append(Message(role="tool", name=call.name, content=_content(result.blocks)))
    return tuple(messages)


def _content(blocks: Iterable[_Block]) -> tuple[Block, ...]:
    return tuple(
        TextBlock(text=block.text)
        if isinstance(block, _Text)
        else ImageBlock(data=block.data, mime_type=block.mime_type)
        for block in blocks
        if isinstance(block, _Text | _Image)
    )
