"""The environment's tools over MCP (streamable HTTP): one JSON-RPC message in, one answer out, nothing kept between.

There are no sessions, no streams and nothing that the server says on its own: the token of the URL is the episode. The
model reads the text of a result alone. Rewards, metadata and the ending stay here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from orl_core.messages import Block, TextBlock, ToolCall, ToolResult

from orl_gateway.dialects import RequestRefused
from orl_gateway.episode.episode import Episode

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # of the protocol, the newest first
PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMETERS, REFUSED = -32700, -32600, -32601, -32602, -32000
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

Fields = Mapping[str, Any]


class _Wrong(Exception):
    """A message that cannot be answered with a result; `code` is that of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def refuse_foreign_page(origin: str | None, url: str) -> None:
    """Refuse a browser's request from another site, as the protocol asks (DNS rebinding)."""
    if origin is None:
        return
    try:
        host = urlsplit(origin).hostname
    except ValueError as exc:
        raise RequestRefused(f"the header `Origin` is no address: {exc}") from exc
    if host not in (*_LOOPBACK, urlsplit(url).hostname):
        raise RequestRefused(f"a page of {origin} may not use the tools", status=403)


async def answer(episode: Episode, body: bytes) -> dict[str, Any] | None:
    """Return the answer to one JSON-RPC message, or None if it asks for none."""
    id_: object = None
    try:
        message = _message(body)
        if "method" not in message or "id" not in message:
            return None  # a notification, or an answer to what we never ask
        id_ = message["id"]
        if isinstance(id_, bool) or not isinstance(id_, str | int):
            id_ = None
            raise _Wrong(INVALID_REQUEST, "`id` is no string and no integer")
        result = await _result(episode, message["method"], message.get("params", {}))
    except _Wrong as wrong:
        return {"jsonrpc": "2.0", "id": id_, "error": {"code": wrong.code, "message": str(wrong)}}
    except RequestRefused as refusal:
        text = "the environment failed: end" if refusal.code == "engine_fault" else str(refusal)
        return {"jsonrpc": "2.0", "id": id_, "error": {"code": REFUSED, "message": text}}
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def _message(body: bytes) -> Fields:
    try:
        tree: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _Wrong(PARSE_ERROR, f"the message is no JSON: {exc}") from exc
    if not isinstance(tree, dict):
        raise _Wrong(INVALID_REQUEST, "the message is no JSON object. Send one message at a time")
    message = cast("dict[str, Any]", tree)
    if message.get("jsonrpc") != "2.0":
        raise _Wrong(INVALID_REQUEST, '`jsonrpc` is not "2.0"')
    return message


async def _result(episode: Episode, method: object, parameters: object) -> dict[str, Any]:
    do = _METHODS.get(method) if isinstance(method, str) else None
    if do is None:
        raise _Wrong(UNKNOWN_METHOD, f"the method `{method}` is not served. There are {', '.join(_METHODS)}")
    if not isinstance(parameters, dict):
        raise _Wrong(INVALID_PARAMETERS, "`params` is no JSON object")
    return await do(episode, cast("dict[str, Any]", parameters))


async def _initialize(_: Episode, parameters: Fields) -> dict[str, Any]:
    wished = parameters.get("protocolVersion")
    return {
        "protocolVersion": wished if wished in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "orl", "version": version("orl-gateway")},
    }


async def _ping(_: Episode, __: Fields) -> dict[str, Any]:
    return {}


async def _list(episode: Episode, _: Fields) -> dict[str, Any]:
    tools = [
        {"name": tool.name, "description": tool.description, "inputSchema": _schema(tool.parameters)}
        for tool in episode.opening.tools
    ]
    return {"tools": tools}


def _schema(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a tool with its type, which the protocol asks for. The order stays: the model reads it."""
    return parameters if "type" in parameters else {"type": "object", **parameters}


async def _call(episode: Episode, parameters: Fields) -> dict[str, Any]:
    name, arguments = parameters.get("name"), parameters.get("arguments")
    if not isinstance(name, str):
        raise _Wrong(INVALID_PARAMETERS, "`name` is no string")
    if arguments is not None and not isinstance(arguments, dict):
        raise _Wrong(INVALID_PARAMETERS, "`arguments` is no JSON object")
    result = await episode.call(ToolCall(name=name, arguments=cast("dict[str, Any]", arguments or {})))
    return shown(result)


def shown(result: ToolResult) -> dict[str, Any]:
    """Return the part of a result that a client may see: its content, and whether the call was refused."""
    return {"content": [_block(block) for block in result.content], "isError": result.failure is not None}


def _block(block: Block) -> dict[str, str]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image", "data": block.data, "mimeType": block.mime_type}


_METHODS: dict[str, Callable[[Episode, Fields], Awaitable[dict[str, Any]]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "tools/list": _list,
    "tools/call": _call,
}
