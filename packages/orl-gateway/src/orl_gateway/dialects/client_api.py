"""What the three APIs of clients share: fields that are refused or ignored, contents, tools, server-sent events.

What cannot be obeyed is refused. Sampling belongs to the trainer: a client's own values are read and give way to the
trainer's, because a sampled id's logprob must be that of the policy that is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct, structs
from msgspec.json import Decoder
from orl_core.errors import boundary
from orl_core.messages import TextBlock, ToolSpec

from orl_gateway.dialects.exchange import LEAVE_OUT, History, ModelRequest, Reply, RequestRefused, unsupported

T = TypeVar("T")
F = TypeVar("F", bound="Fields")
TOOLS = Decoder(list[dict[str, Any]])

TRAINERS_FIELDS = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "reasoning_effort", "reasoning", "thinking", "chat_template_kwargs", "verbosity"),
        *("enable_thinking", "thinking_budget", "do_sample", "length_penalty"),
    )
)
BOOKKEEPING_FIELDS = frozenset(
    (
        *("user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
        *("skip_special_tokens", "spaces_between_special_tokens"),  # the text of an answer is the parser's
        "max_tool_calls",  # of tools that a provider runs
    )
)
_NEUTRAL: dict[str, tuple[bytes, ...]] = {  # values of other fields that change nothing, as JSON
    "logit_bias": (b"{}",),
    "top_logprobs": (b"0",),
    "best_of": (b"1",),
    "functions": (b"[]",),
    "function_call": (b'"auto"', b'"none"'),  # of `functions`
    "min_tokens": (b"0",),
    "stop_token_ids": (b"[]",),
    "ignore_eos": (b"false",),
    "echo": (b"false",),
    "include_reasoning": (b"true",),
    "separate_reasoning": (b"true",),
    "return_token_ids": (b"false",),
    "mcp_servers": (b"[]",),
    "betas": (b"[]",),
}
_REMEDIES = {"functions": "send `tools`", "function_call": "send `tool_choice`"}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
_IMAGE_PARTS = frozenset({"image", "image_url", "input_image", "computer_screenshot"})


class Fields(Struct, kw_only=True):
    """Fields of a request in one API. One of the type `Raw` is not read: it may hold the whole history."""

    model: str = ""
    tools: Raw = Raw(b"[]")
    stream: bool = False

    def choice(self) -> dict[str, Any]:
        """Return what `tool_choice` allows and demands, as fields of ModelRequest."""
        raise NotImplementedError

    def faults(self) -> Iterator[RequestRefused]:
        """Yield what cannot be obeyed of the other fields."""
        raise NotImplementedError


def read_body(body: bytes, form: type[F], *, samples: bool) -> F:
    """Return a request's JSON as `form`. Null is the same as no value.

    Fields of `form`, TRAINERS_FIELDS and BOOKKEEPING_FIELDS are known. What cannot be obeyed is refused at once.
    `samples` tells that a call which a client demands is sampled like any other.
    """
    with boundary(RequestRefused, "reading the request"):
        tree = msgspec.json.decode(body, type=dict[str, Raw])
        texts = {name: text for name, text in tree.items() if bytes(text) != b"null"}
        readers = _readers(form)
        fields = form(**{name: read_field(name, texts[name], readers[name]) for name in texts.keys() & readers.keys()})
        unknown = texts.keys() - readers.keys() - TRAINERS_FIELDS - BOOKKEEPING_FIELDS
        sent = {name: msgspec.json.encode(msgspec.json.decode(texts[name])) for name in sorted(unknown)}
        refused = [name for name, value in sent.items() if value not in _NEUTRAL.get(name, ())]
        faults = [unsupported(f"the field `{name}`", _REMEDIES.get(name, LEAVE_OUT)) for name in refused]
        faults += fields.faults()
        demand = fields.choice().get("demand")
    if demand is not None and not samples:  # enforced decoding samples from another policy than that which is trained
        which = f" of `{demand}`" if demand else ""
        remedy = "send `auto`, or set `agent.forced_calls: sample`"
        faults.append(unsupported(f"`tool_choice`: a call{which} that the model must make", remedy))
    if faults:
        raise RequestRefused("; ".join(map(str, faults)), code="unsupported")
    return fields


@lru_cache
def _readers(form: type[Struct]) -> dict[str, Decoder[Any]]:
    """Return what reads each field of `form`."""
    return {one.name: Decoder(one.type) for one in structs.fields(form)}


def read_field(name: str, text: bytes | Raw, reader: Decoder[T]) -> T:
    """Return the value of a field, or of a member of it."""
    try:
        return reader.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestRefused(f"reading `{name}`: {exc}") from exc


def text_blocks(content: object, where: str) -> tuple[TextBlock, ...]:
    """Return the text of a content: a string, or a list of parts. `where` is named in the refusal."""
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
    """Return the arguments of a call in a request: an object, or its JSON. An empty text is no arguments."""
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


Event = Mapping[str, Any]


class ClientApi(Struct, frozen=True, kw_only=True):
    """One API that clients speak: pure functions from its wire format and to it.

    `body` is the answer of one piece, `events` are those of a stream, in order; `encode` writes one of them, `end`
    follows the last one, and `keepalive` may be between any two. `request` reads one whose body has the form `form`.
    """

    name: str
    form: type[Fields]
    request: Callable[[Any, History], ModelRequest]
    body: Callable[[Reply, ModelRequest], dict[str, Any]]
    events: Callable[[Reply, ModelRequest], Iterable[Event]]
    error: Callable[[RequestRefused], dict[str, Any]]
    encode: Callable[[Event], bytes]
    error_event: Callable[[RequestRefused], Event]
    keepalive: bytes
    end: bytes = b""

    def read(self, body: bytes, history: History | None = None) -> ModelRequest:
        """Read a request. What `history` has read before is not read again."""
        history = history or History()
        return self.request(read_body(body, self.form, samples=history.samples_forced_calls), history)


def data_of(event: Event) -> bytes:
    """Write an event as a server-sent event without a name."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def named(event: Event) -> bytes:
    """Write an event as a server-sent event that its type names."""
    return f"event: {event['type']}\n".encode() + data_of(event)


def models_body(name: str) -> dict[str, Any]:
    """Return the list of the one model `name`."""
    model = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "orl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
    return {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}


KEEPALIVE = b": keepalive\n\n"


class OpenAIFields(Fields, kw_only=True):
    """Fields of both APIs."""

    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True

    def choice(self) -> dict[str, Any]:
        """Read `tool_choice`: a word, a function that must be called, or a list of the tools that may be called."""
        choice = self.tool_choice
        fields = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {"type": choice}
        match fields:
            case {"type": "auto" | "none" | "required" as word}:
                return {"allows_calls": word != "none", "demand": "" if word == "required" else None}
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                return {"demand": name}
            case {"type": "allowed_tools"}:
                return _allowed(fields.get("allowed_tools", fields))
            case _:
                raise unsupported(f"`tool_choice`: {choice!r:.80}", "send `auto`")


def function_tool(tool: dict[str, Any], function: object) -> ToolSpec:
    """Return a tool with the name, description and parameters in `function`.

    `strict` promises decoding under the schema, which would sample from another policy: it changes nothing here.
    """
    kind = tool.get("type", "function")
    if kind != "function":
        raise unsupported(f"a tool of type `{kind}`")
    if not isinstance(function, dict):
        raise RequestRefused("a tool has no object `function`: put its name and its parameters there")
    return tool_spec(cast("dict[str, Any]", function), "parameters")


def tool_spec(fields: dict[str, Any], schema: str) -> ToolSpec:
    """Return the tool of `fields`; `schema` names the field of its parameters."""
    name: object = fields.get("name")
    parameters: object = fields.get(schema) or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not name:
        raise RequestRefused("a tool has no name")
    if not isinstance(parameters, dict):
        raise RequestRefused(f"tool `{name}`: `{schema}` is no object")
    return ToolSpec(
        name=name, description=str(fields.get("description") or ""), parameters=cast("dict[str, Any]", parameters)
    )


def _allowed(fields: Any) -> dict[str, Any]:
    """Return the choice of a list of tools, each a function with its name, and `mode`."""
    with boundary(RequestRefused, "reading `tool_choice`"):
        names = frozenset(tool.get("function", tool)["name"] for tool in fields["tools"])
    return {"demand": "" if fields.get("mode") == "required" else None, "allowed": names}


def error(refusal: RequestRefused) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error"
    if refusal.status >= 500:
        kind = "server_error"
    elif refusal.status == 401:
        kind = "authentication_error"
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}}
