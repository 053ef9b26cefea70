"""OpenAI's Chat Completions: `/v1/chat/completions`.

Reasoning is in `reasoning_content`, the name that servers of open models use; clients may send it back or drop it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from orl_gateway.dialects.client_api import (
    KEEPALIVE,
    TOOLS,
    ClientApi,
    Event,
    OpenAIFields,
    arguments_of,
    data_of,
    error,
    function_tool,
    read_field,
    text_blocks,
)
from orl_gateway.dialects.exchange import Conversation, History, ModelRequest, Reply, RequestRefused, unsupported

_ENDINGS = {"stop": "stop", "calls": "tool_calls", "length": "length", "stop_sequence": "stop"}


class _Function(Struct, kw_only=True):
    name: str = ""
    arguments: Any = ""


class _Call(Struct, kw_only=True):
    id: str
    function: _Function


class _Message(Struct, kw_only=True):
    role: str
    content: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None


class _Body(OpenAIFields, kw_only=True):
    messages: list[Raw]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] = field(default_factory=list[str])
    stream_options: dict[str, Any] = field(default_factory=dict[str, Any])
    n: int = 1
    logprobs: bool = False
    response_format: dict[str, Any] = field(default_factory=dict[str, Any])
    modalities: list[str] = field(default_factory=list[str])

    def faults(self) -> Iterator[RequestRefused]:
        if self.n != 1:
            yield unsupported(f"`n`: {self.n}, several answers to one request,")
        if self.logprobs:
            yield unsupported("`logprobs`")
        if (kind := self.response_format.get("type", "text")) != "text":
            yield unsupported(f"`response_format` of type `{kind}`")
        if unknown := sorted({*self.modalities} - {"text"}):
            yield unsupported(f"`modalities`: {', '.join(unknown)}")


_MESSAGE = Decoder(_Message)


def request(fields: _Body, history: History) -> ModelRequest:
    """Return the request with these fields."""
    conversation = history.read("chat", fields.tools, _tools, fields.messages, _add)
    return ModelRequest(
        **conversation,
        model=fields.model,
        max_tokens=fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens,
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop),
        **fields.choice(),
        allows_parallel=fields.parallel_tool_calls,
        stream=fields.stream,
        stream_usage=fields.stream_options.get("include_usage") is True,
    )


def _add(conversation: Conversation, index: int, part: bytes) -> None:
    message = read_field(f"messages[{index}]", part, _MESSAGE)
    where = f"message {index} ({message.role})"
    for name in ("function_call", "audio"):
        if getattr(message, name) is not None:
            raise unsupported(f"{where}: `{name}`")
    blocks = text_blocks(message.content or message.refusal, where)
    if message.role in ("system", "developer"):
        conversation.system(blocks)
    elif message.role == "user":
        conversation.user(blocks)
    elif message.role == "tool":
        conversation.result(message.tool_call_id or "", blocks)
    elif message.role == "assistant":
        calls = [
            (call.id, call.function.name, arguments_of(call.function.arguments, call.function.name))
            for call in message.tool_calls or ()
        ]
        conversation.assistant(blocks, reasoning=message.reasoning_content or message.reasoning or "", calls=calls)
    else:
        raise unsupported(f"{where}: this role", "use `system`, `user`, `assistant` or `tool`")


def _tools(text: Raw) -> dict[str, Any]:
    return {"tools": tuple(function_tool(tool, tool.get("function")) for tool in read_field("tools", text, TOOLS))}


def body(reply: Reply, request: ModelRequest) -> dict[str, Any]:
    """Return the answer of one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None, **_reasoning(reply)}
    if reply.calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _ENDINGS[reply.ending], "logprobs": None}
    return {**_frame(reply, request, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def events(reply: Reply, request: ModelRequest) -> Iterator[Event]:
    """Yield the chunks of a stream."""
    frame = _frame(reply, request, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], ending: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": ending, "logprobs": None}
        return {**frame, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if reply.reasoning:
        yield chunk(_reasoning(reply))
    if reply.text:
        yield chunk({"content": reply.text})
    for index, call in enumerate(_calls(reply)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _ENDINGS[reply.ending])
    if request.stream_usage:
        yield {**frame, "choices": [], "usage": _usage(reply)}


def _frame(reply: Reply, request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.name}", "object": kind, "created": reply.created, "model": request.model}


def _reasoning(reply: Reply) -> dict[str, str]:
    return {"reasoning_content": reply.reasoning} if reply.reasoning else {}


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": sent.id,
            "type": "function",
            "function": {"name": sent.call.name, "arguments": json.dumps(sent.call.arguments, ensure_ascii=False)},
        }
        for sent in reply.calls
    ]


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


CHAT = ClientApi(
    name="chat",
    form=_Body,
    request=request,
    body=body,
    events=events,
    error=error,
    encode=data_of,
    error_event=error,
    keepalive=KEEPALIVE,
    end=b"data: [DONE]\n\n",
)
