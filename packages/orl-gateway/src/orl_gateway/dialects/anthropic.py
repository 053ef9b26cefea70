"""Anthropic's Messages: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import Decoder
from orl_core.messages import TextBlock, ToolSpec

from orl_gateway.dialects.client_api import (
    TOOLS,
    ClientApi,
    Event,
    Fields,
    arguments_of,
    named,
    read_field,
    text_blocks,
    tool_spec,
)
from orl_gateway.dialects.exchange import Conversation, History, ModelRequest, Reply, RequestRefused, unsupported

_ENDINGS = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "stop_sequence": "stop_sequence"}
_KINDS = {401: "authentication_error", 502: "api_error"}
_BILLING = "x-anthropic-billing-header:"  # Claude Code's block of the system prompt, other in each request


class _Message(Struct, kw_only=True):
    role: str
    content: Any


class _Body(Fields, kw_only=True):
    messages: list[Raw]
    max_tokens: int | None = None
    system: Any = ""
    tool_choice: dict[str, Any] = field(default_factory=dict[str, Any])
    stop_sequences: list[str] = field(default_factory=list[str])
    context_management: dict[str, Any] = field(default_factory=dict[str, Any])
    output_config: dict[str, Any] = field(default_factory=dict[str, Any])

    def choice(self) -> dict[str, Any]:
        kind = self.tool_choice.get("type", "auto")
        if kind not in ("auto", "none", "any", "tool"):
            raise unsupported(f"`tool_choice` of type `{kind}`", "send `auto`")
        demand = {"any": "", "tool": str(self.tool_choice.get("name") or "")}.get(kind)
        return {"allows_calls": kind != "none", "demand": demand}

    def faults(self) -> Iterator[RequestRefused]:
        """Yield changes of the context and forms of the answer. Reasoning and effort are the trainer's."""
        for edit in _blocks(self.context_management.get("edits") or []):
            if not str(edit.get("type")).startswith("clear_thinking_"):
                yield unsupported(f"`context_management`: an edit of type `{edit.get('type')}`")
        for name in sorted(
            name for name, value in self.output_config.items() if name != "effort" and value is not None
        ):
            yield unsupported(f"`output_config`: `{name}`")


_MESSAGE = Decoder(_Message)


def request(fields: _Body, history: History) -> ModelRequest:
    """Return the request with these fields, also one that asks for a count."""
    system = [block.text for block in text_blocks(fields.system, "system") if not block.text.startswith(_BILLING)]
    parts = (msgspec.json.encode(system), *fields.messages)
    conversation = history.read("anthropic", fields.tools, _tools, parts, _add)
    return ModelRequest(
        **conversation,
        model=fields.model,
        max_tokens=fields.max_tokens,
        stop=tuple(fields.stop_sequences),
        **fields.choice(),
        allows_parallel=not fields.tool_choice.get("disable_parallel_tool_use"),
        stream=fields.stream,
        stream_usage=True,
    )


def _tools(text: Raw) -> dict[str, Any]:
    return {"tools": tuple(map(_tool, read_field("tools", text, TOOLS)))}


def _tool(tool: dict[str, Any]) -> ToolSpec:
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise unsupported(f"a tool of type `{kind}`, which the provider would run,")
    return tool_spec(tool, "input_schema")


def _add(conversation: Conversation, index: int, part: bytes) -> None:
    """Read the first part, the texts of the system prompt, or a message."""
    if not index:
        if system := msgspec.json.decode(part, type=list[str]):
            conversation.system([TextBlock(text=text) for text in system])
        return
    message = read_field(f"messages[{index - 1}]", part, _MESSAGE)
    _add_message(conversation, message, f"message {index - 1} ({message.role})")


def _add_message(conversation: Conversation, message: _Message, where: str) -> None:
    if message.role == "assistant":
        _add_action(conversation, message.content, where)
    elif message.role == "user":
        for block in _blocks(message.content):
            if block.get("type") == "tool_result":
                conversation.result(str(block.get("tool_use_id")), text_blocks(block.get("content"), where))
            else:
                conversation.user(text_blocks([block], where))
    elif message.role == "system":
        conversation.system(text_blocks(message.content, where))
    else:
        raise unsupported(f"{where}: this role", "use `user` or `assistant`")


def _add_action(conversation: Conversation, content: object, where: str) -> None:
    texts: list[TextBlock] = []
    reasoning: list[str] = []
    calls: list[tuple[str, str, dict[str, Any]]] = []
    for block in _blocks(content):
        kind = block.get("type")
        if kind == "thinking":
            reasoning.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            name = str(block.get("name"))
            calls.append((str(block.get("id")), name, arguments_of(block.get("input") or {}, name)))
        else:
            texts += text_blocks([block], where)
    conversation.assistant(texts, reasoning="\n".join(reasoning), calls=calls)


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and all(isinstance(one, dict) for one in cast("list[object]", content)):
        return cast("list[dict[str, Any]]", content)
    raise RequestRefused("the content of a message is neither a text nor a list of blocks")


def body(reply: Reply, request: ModelRequest) -> dict[str, Any]:
    """Return the answer of one piece."""
    return {
        "id": f"msg_{reply.name}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": _content(reply),
        "stop_reason": _ENDINGS[reply.ending],
        "stop_sequence": reply.stop_sequence or None,
        "usage": {  # the first three together are the whole context
            "input_tokens": reply.prompt_tokens - reply.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reply.cached_tokens,
            "output_tokens": reply.sampled_tokens,
        },
    }


def _content(reply: Reply) -> list[dict[str, Any]]:
    """Return the blocks of the answer. Some clients send reasoning back as a user's text if it has no signature."""
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": reply.name})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    blocks += [
        {"type": "tool_use", "id": sent.id, "name": sent.call.name, "input": sent.call.arguments}
        for sent in reply.calls
    ]
    return blocks


def events(reply: Reply, request: ModelRequest) -> Iterator[Event]:
    """Yield the events of a stream."""
    answer = body(reply, request)
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**answer, **begun, "usage": {**answer["usage"], "output_tokens": 0}}}
    for index, block in enumerate(answer["content"]):
        empty = {name: value if name in ("type", "id", "name") else type(value)() for name, value in block.items()}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": answer["usage"]}
    yield {"type": "message_stop"}


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "tool_use":
        return [{"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}]
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return [thought, {"type": "signature_delta", "signature": block["signature"]}]
    return [{"type": "text_delta", "text": block["text"]}]


def error(refusal: RequestRefused) -> dict[str, Any]:
    """Return the body of an error.

    Clients compact their context when they read that the prompt is too long.
    """
    text = str(refusal)
    if refusal.code == "context_length_exceeded":
        text = f"prompt is too long: {text}"
    kind = _KINDS.get(refusal.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": None}


ANTHROPIC = ClientApi(
    name="anthropic",
    form=_Body,
    request=request,
    body=body,
    events=events,
    error=error,
    encode=named,
    error_event=error,
    keepalive=b'event: ping\ndata: {"type": "ping"}\n\n',
)
