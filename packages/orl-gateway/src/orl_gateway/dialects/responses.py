"""OpenAI's Responses: `/v1/responses`. A request holds its whole input, or names the answer that it continues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Raw, field, structs
from msgspec.json import Decoder
from orl_core.messages import ToolSpec

from orl_gateway.dialects.client_api import (
    KEEPALIVE,
    TOOLS,
    ClientApi,
    Event,
    OpenAIFields,
    arguments_of,
    error,
    function_tool,
    named,
    read_field,
    text_blocks,
)
from orl_gateway.dialects.exchange import Conversation, History, ModelRequest, Reply, RequestRefused, unsupported


class _Body(OpenAIFields, kw_only=True):
    input: str | list[Raw]
    instructions: str = ""
    previous_response_id: str = ""
    max_output_tokens: int | None = None
    stream_options: Any = None  # they say how deltas are padded
    text: dict[str, Any] = field(default_factory=dict[str, Any])
    include: list[str] = field(default_factory=list[str])
    truncation: str = "disabled"
    background: bool = False

    def faults(self) -> Iterator[RequestRefused]:
        written: dict[str, Any] = self.text.get("format") or {}
        if (kind := written.get("type", "text")) != "text":
            yield unsupported(f"`text.format` of type `{kind}`")
        if unknown := sorted({*self.include} - {"reasoning.encrypted_content"}):
            yield unsupported(f"`include`: {', '.join(unknown)}")
        if self.truncation != "disabled":
            yield unsupported(f"`truncation`: `{self.truncation}`", "send `disabled`")
        if self.background:
            yield unsupported("`background`")


_TEXT_OR_ITEM: Decoder[str | dict[str, Any]] = Decoder(str | dict[str, Any])


def request(fields: _Body, history: History) -> ModelRequest:
    """Return the request with these fields."""
    new = [msgspec.json.encode(fields.input)] if isinstance(fields.input, str) else fields.input
    parts = (msgspec.json.encode(fields.instructions), *_before(history, fields.previous_response_id), *new)
    conversation = history.read("responses", fields.tools, _tools, parts, partial(_add, history))
    return ModelRequest(
        **conversation,
        model=fields.model,
        max_tokens=fields.max_output_tokens,
        **fields.choice(),
        allows_parallel=fields.parallel_tool_calls,
        stream=fields.stream,
        stream_usage=True,
    )


def _before(history: History, id_: str) -> Sequence[bytes]:
    """Return the items of an earlier request and its answer. A client names them by the answer's id."""
    if not id_:
        return ()
    known = history.replies.get(id_.removeprefix("resp_"))
    if known is None:
        raise unsupported(
            f"`previous_response_id`: `{id_}`, no answer of this session,", "send the conversation as `input`"
        )
    request, reply = known
    return (*(request.point.parts() if request.point else ()), *map(msgspec.json.encode, _output(reply, request)))


def _tools(text: Raw) -> dict[str, Any]:
    """Return the tools, and the namespaces of those that have one by their names."""
    listed = [*_specs(read_field("tools", text, TOOLS))]
    namespaces = {tool.name: namespace for tool, namespace in listed if namespace}
    return {"tools": tuple(tool for tool, _ in listed), "namespaces": namespaces}


def _specs(tools: list[dict[str, Any]], namespace: str = "") -> Iterator[tuple[ToolSpec, str]]:
    """Yield each tool under the name that the model reads, and its namespace, empty if it has none."""
    for tool in tools:
        inner = tool.get("tools")
        if tool.get("type") == "namespace" and not namespace and isinstance(inner, list):
            yield from _specs(cast("list[dict[str, Any]]", inner), str(tool.get("name")))
        else:
            spec = function_tool(tool, tool)
            yield structs.replace(spec, name=_joined(namespace, spec.name)), namespace


def _joined(namespace: object, name: str) -> str:
    """Return the name that the model reads for a tool in a namespace: chat templates know no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def _add(history: History, conversation: Conversation, index: int, part: bytes) -> None:
    """Read the first part, the instructions, or an item of the input; an input of text is one item."""
    item, where = read_field(f"input[{index - 1}]", part, _TEXT_OR_ITEM), f"input item {index - 1}"
    if not isinstance(item, str):
        referred = item.get("type") == "item_reference"
        _add_item(conversation, _referred(history, str(item.get("id")), where) if referred else item, where)
    elif index:
        conversation.user(text_blocks(item, "input"))
    elif item:
        conversation.system(text_blocks(item, "instructions"))


def _referred(history: History, id_: str, where: str) -> dict[str, Any]:
    """Return the item of an earlier answer that a client names by its id, as those do that rely on `store`."""
    known = history.replies.get("".join(id_.split("_")[1:2]))
    for item in _output(known[1], known[0]) if known else []:
        if item["id"] == id_:
            return item
    raise unsupported(f"{where}: an `item_reference` to `{id_}`, which is no item of an earlier answer,")


def _add_item(conversation: Conversation, item: dict[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(conversation, item, where)
    elif kind == "reasoning":
        parts = cast("list[Any]", item.get("content") or item.get("summary") or [])
        conversation.assistant(reasoning="\n".join(block.text for block in text_blocks(parts, where)))
    elif kind == "function_call":
        name = _joined(item.get("namespace"), str(item.get("name")))
        call = (str(item.get("call_id")), name, arguments_of(item.get("arguments"), name))
        conversation.assistant(calls=[call])
    elif kind == "function_call_output":
        conversation.result(str(item.get("call_id")), text_blocks(item.get("output"), where))
    else:
        raise unsupported(f"{where}: an item of type `{kind}`")


def _add_message(conversation: Conversation, item: dict[str, Any], where: str) -> None:
    role, blocks = item.get("role"), text_blocks(item.get("content"), where)
    if role in ("system", "developer"):
        conversation.system(blocks)
    elif role == "user":
        conversation.user(blocks)
    elif role == "assistant":
        conversation.assistant(blocks)
    else:
        raise unsupported(f"{where}: the role `{role}`", "use `system`, `user` or `assistant`")


def body(reply: Reply, request: ModelRequest) -> dict[str, Any]:
    """Return the answer of one piece."""
    cut = reply.ending == "length"
    return {
        **_frame(reply, request),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(reply, request),
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": reply.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
            "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        },
    }


def _frame(reply: Reply, request: ModelRequest) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.name}",
        "object": "response",
        "created_at": reply.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.allows_parallel,
        "tool_choice": "auto" if request.allows_calls else "none",
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in request.tools
        ],
        "usage": None,
    }


def _output(reply: Reply, request: ModelRequest) -> list[dict[str, Any]]:
    """Return the items of the output: reasoning, the text, and each call."""
    status = "incomplete" if reply.ending == "length" else "completed"
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        thought = [{"type": "reasoning_text", "text": reply.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{reply.name}", "summary": [], "content": thought})
    if reply.text or not reply.calls:
        text: dict[str, Any] = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": f"msg_{reply.name}", "role": "assistant", "content": [text]})
    for index, sent in enumerate(reply.calls):
        arguments = json.dumps(sent.call.arguments, ensure_ascii=False)
        call = {"type": "function_call", "id": f"fc_{reply.name}_{index}", "call_id": sent.id}
        items.append({**call, **_named(sent.call.name, request), "arguments": arguments})
    return [{**item, "status": status} for item in items]


def _named(name: str, request: ModelRequest) -> dict[str, str]:
    """Return the fields of a call that name its tool."""
    namespace = request.namespaces.get(name)
    return {"namespace": namespace, "name": name[len(_joined(namespace, "")) :]} if namespace else {"name": name}


def events(reply: Reply, request: ModelRequest) -> Iterator[Event]:
    """Yield the events of a stream, numbered."""
    frame, answer = _frame(reply, request), body(reply, request)
    unnumbered = [
        {"type": "response.created", "response": frame},
        {"type": "response.in_progress", "response": frame},
        *(event for index, item in enumerate(answer["output"]) for event in _item_events(index, item)),
        {"type": f"response.{answer['status']}", "response": answer},
    ]
    for number, event in enumerate(unnumbered):
        yield {**event, "sequence_number": number}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"output_index": index, "item_id": item["id"]}
    begun: dict[str, Any] = {
        **item,
        "status": "in_progress",
        **({"arguments": ""} if "arguments" in item else {"content": []}),
    }
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    if item["type"] == "function_call":
        written = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **at, "delta": written}
        yield {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": written}
    else:
        yield from _part_events(at, item["content"][0])
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(at: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {**at, "content_index": 0}
    more: dict[str, Any] = {"logprobs": []} if "logprobs" in part else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    yield {"type": f"response.{part['type']}.delta", **at, "delta": part["text"], **more}
    yield {"type": f"response.{part['type']}.done", **at, "text": part["text"], **more}
    yield {"type": "response.content_part.done", **at, "part": part}


def error_event(refusal: RequestRefused) -> Event:
    """Return the event of a fault in a stream that has begun."""
    return {"type": "error", "sequence_number": 0, "code": refusal.code, "message": str(refusal), "param": None}


RESPONSES = ClientApi(
    name="responses",
    form=_Body,
    request=request,
    body=body,
    events=events,
    error=error,
    encode=named,
    error_event=error_event,
    keepalive=KEEPALIVE,
)
