"""The environment's tools over MCP (streamable HTTP): one JSON-RPC message in, one answer out, nothing kept between.

There are no sessions, no streams and nothing that the server says on its own: the token of the URL is the episode. The
model reads the text of a result alone. Rewards, metadata and the ending stay here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct
from orl_core.messages import Block, TextBlock, ToolCall

from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.episode.episode import Episode

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # of the protocol, the newest first
PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMETERS, REFUSED = -32700, -32600, -32601, -32602, -32000
T = TypeVar("T")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _Wrong(Exception):
    """Refuse a message; `code` is JSON-RPC's."""

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


class _Message(Struct, kw_only=True):
    """One JSON-RPC message. A notification has no `id`, an answer to a request of the server no `method`."""

    jsonrpc: Literal["2.0"]
    id: str | int | None = None
    method: str | None = None
    params: Raw = Raw(b"{}")


class _Initialize(Struct, rename="camel"):
    protocol_version: str = VERSIONS[0]


class _Call(Struct):
    name: str
    arguments: dict[str, Any] | None = None


async def answer(episode: Episode, body: bytes) -> dict[str, Any] | None:
    """Return the answer to one JSON-RPC message, or None if it asks for none."""
    id_: str | int | None = None
    try:
        message = _decode(body, _Message, INVALID_REQUEST)
        if message.method is None or message.id is None:
            return None
        id_ = message.id
        if message.method not in _METHODS:
            served = ", ".join(_METHODS)
            raise _Wrong(UNKNOWN_METHOD, f"the method `{message.method}` is not served. There are {served}")
        form, method = _METHODS[message.method]
        result = await method(episode, _decode(message.params, form, INVALID_PARAMETERS))
    except _Wrong as wrong:
        return {"jsonrpc": "2.0", "id": id_, "error": {"code": wrong.code, "message": str(wrong)}}
    except RequestRefused as refusal:
        text = "the environment failed: end" if refusal.code == "engine_fault" else str(refusal)
        return {"jsonrpc": "2.0", "id": id_, "error": {"code": REFUSED, "message": text}}
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def _decode(text: bytes | Raw, form: type[T], code: int) -> T:
    try:
        return msgspec.json.decode(text, type=form)
    except msgspec.ValidationError as exc:
        raise _Wrong(code, f"the message is wrong: {exc}. Send one message at a time") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _Wrong(PARSE_ERROR, f"the message is not valid JSON: {exc}") from exc


async def _initialize(_: Episode, parameters: _Initialize) -> dict[str, Any]:
    wished = parameters.protocol_version
    return {
        "protocolVersion": wished if wished in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "orl", "version": version("orl-gateway")},
    }


async def _ping(_: Episode, __: object) -> dict[str, Any]:
    return {}


async def _list(episode: Episode, _: object) -> dict[str, Any]:
    """List the tools. The protocol asks for a schema's type. Its order stays: the model reads it."""
    tools = [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.parameters if "type" in tool.parameters else {"type": "object", **tool.parameters},
        }
        for tool in episode.opening.tools
    ]
    return {"tools": tools}


async def _call(episode: Episode, parameters: _Call) -> dict[str, Any]:
    """Call a tool, and return what a client may see: the content, and whether the call was refused."""
    result = await episode.tools.call(ToolCall(name=parameters.name, arguments=parameters.arguments or {}))
    return {"content": [_block(block) for block in result.content], "isError": result.failure is not None}


def _block(block: Block) -> dict[str, str]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image", "data": block.data, "mimeType": block.mime_type}


_METHODS: dict[str, tuple[type, Callable[[Episode, Any], Awaitable[dict[str, Any]]]]] = {
    "initialize": (_Initialize, _initialize),
    "ping": (dict, _ping),
    "tools/list": (dict, _list),
    "tools/call": (_Call, _call),
}
