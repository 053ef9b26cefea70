"""Shared by the readers: the fields of a body, and the parts of a content.

What cannot be obeyed is refused. Sampling belongs to the trainer: a client's own values are read and give way to the
trainer's, because a sampled id's logprob must be that of the policy that is trained.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct, structs
from msgspec.json import Decoder
from orl_core.errors import boundary
from orl_core.messages import TextBlock

from orl_gateway.dialects.exchange import RequestRefused

T = TypeVar("T")
F = TypeVar("F", bound=Struct)
_LIST = Decoder(list[Raw])
TOOLS = Decoder(list[dict[str, Any]])
NO_TOOLS = Raw(b"[]")

TRAINERS_FIELDS = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "reasoning_effort", "reasoning", "thinking", "chat_template_kwargs", "verbosity"),
    )
)
BOOKKEEPING_FIELDS = frozenset(
    (
        *("user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
    )
)
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
_IMAGE_PARTS = frozenset({"image", "image_url", "input_image", "computer_screenshot"})


def read_body(body: bytes, form: type[F]) -> F:
    """Return a request's JSON as `form`. Null is the same as no value.

    Fields of `form`, TRAINERS_FIELDS and BOOKKEEPING_FIELDS are known. A field of the type `Raw` is not read: it may
    hold the whole history.

    Raises:
        RequestRefused: the body is no JSON object, a field has the wrong type, or it is none that can be obeyed.
    """
    with boundary(RequestRefused, "reading the request"):
        tree = msgspec.json.decode(body, type=dict[str, Raw])
        given = {name: text for name, text in tree.items() if bytes(text) != b"null"}
        readers = _readers(form)
        if unknown := sorted(given.keys() - readers.keys() - TRAINERS_FIELDS - BOOKKEEPING_FIELDS):
            raise unsupported(f"the field `{unknown[0]}`")
        return form(**{name: read_field(name, given[name], readers[name]) for name in given.keys() & readers.keys()})


@lru_cache
def _readers(form: type[Struct]) -> dict[str, Decoder[Any]]:
    """Return what reads each field of `form`."""
    return {one.name: Decoder(one.type) for one in structs.fields(form)}


def read_field(name: str, text: bytes | Raw, reader: Decoder[T]) -> T:
    """Return the value of a field, or of a member of it.

    Raises:
        RequestRefused: it has the wrong type.
    """
    try:
        return reader.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestRefused(f"reading `{name}`: {exc}") from exc


def parts_of(name: str, text: bytes | Raw) -> list[bytes]:
    """Return the members of the list `name`, as the client wrote them.

    Raises:
        RequestRefused: it is no list.
    """
    return [bytes(part) for part in read_field(name, text, _LIST)]


def unsupported(what: str) -> RequestRefused:
    """Return the refusal of a part of a request that the gateway cannot obey."""
    return RequestRefused(f"{what} is not supported by this gateway: leave it out", code="unsupported")


def text_blocks(content: object, where: str) -> tuple[TextBlock, ...]:
    """Return the text of a content: a string, or a list of parts. `where` is named in the refusal.

    Raises:
        RequestRefused: it holds an image or another part that is no text.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextBlock(text=content),) if content else ()
    if not isinstance(content, list):
        raise RequestRefused(f"{where}: the content is neither a text nor a list of parts")
    return tuple(TextBlock(text=_text_of(part, where)) for part in cast("list[object]", content))


def _text_of(part: object, where: str) -> str:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {"type": "text", "text": part}
    kind = fields.get("type", "text")
    if not isinstance(kind, str):
        raise RequestRefused(f"{where}: the `type` of a part is {kind!r:.80}, no string")
    if kind in _IMAGE_PARTS:
        raise unsupported(f"{where}: an image (`{kind}`)")
    text = fields.get("refusal" if kind == "refusal" else "text")
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise unsupported(f"{where}: a part of type `{kind}` that is no text")
    return text


def arguments_of(text: object, name: str) -> dict[str, Any]:
    """Return the arguments of a call in a request: an object, or its JSON. An empty text is no arguments.

    Raises:
        RequestRefused: it is no JSON object.
    """
    if isinstance(text, dict):
        return cast("dict[str, Any]", text)
    if isinstance(text, str):
        try:
            tree: object = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as exc:
            raise RequestRefused(f"the arguments of the call of `{name}` are no JSON: {exc}") from exc
        if isinstance(tree, dict):
            return cast("dict[str, Any]", tree)
    raise RequestRefused(f"the arguments of the call of `{name}` are no JSON object")
