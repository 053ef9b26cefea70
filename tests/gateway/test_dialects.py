"""The wire formats of the gateway: golden requests and replies, the SDKs' own types, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from orl_core.messages import ToolCall
from orl_gateway.dialects import exchange
from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.exchange import History, ModelRequest, Reply, RequestRefused, SentCall
from orl_gateway.dialects.responses import RESPONSES
from pydantic import TypeAdapter

from tests.gateway.agents import LOOK
from tests.gateway.replies import REPLIES

GOLDEN = Path(__file__).parents[1] / "golden" / "gateway"
APIS = {api.name: api for api in (CHAT, RESPONSES, ANTHROPIC)}
SDK_TYPES: dict[str, tuple[TypeAdapter[Any], TypeAdapter[Any]]] = {
    "chat": (TypeAdapter(ChatCompletion), TypeAdapter(ChatCompletionChunk)),
    "responses": (TypeAdapter(Response), TypeAdapter(ResponseStreamEvent)),
    "anthropic": (TypeAdapter(AnthropicMessage), TypeAdapter(RawMessageStreamEvent)),
}
USER = {"role": "user", "content": "Hi."}
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:"}}
CLEARS_RESULTS = {"type": "clear_tool_uses_20250919"}
STRAY = {"role": "tool", "tool_call_id": "call_x", "content": "A wall."}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def wire(tree: object) -> bytes:
    return json.dumps(tree).encode()


def said(request: ModelRequest) -> ModelRequest:
    """The request without what belongs to one memory."""
    return structs.replace(request, point=None)


@pytest.mark.parametrize("name", APIS)
def test_requests_are_read_as_golden(name: str) -> None:
    for case in golden(name)["requests"]:
        wanted = {**case["read"]}
        call_ids, request = wanted.pop("call_ids"), APIS[name].read(wire(case["wire"]))
        assert said(request) == msgspec.convert(wanted, ModelRequest)
        assert request.point
        assert request.point.last
        assert [[*link.call_ids] for link in request.point.last.back()] == call_ids[::-1]


@pytest.mark.parametrize("name", APIS)
def test_replies_are_written_as_golden(name: str) -> None:
    api, cases = APIS[name], golden(name)
    request = api.read(wire(cases["requests"][-1]["wire"]))
    assert [case["reply"] for case in cases["replies"]] == [*REPLIES]
    for case in cases["replies"]:
        reply = REPLIES[case["reply"]]
        assert api.body(reply, request) == case["body"]
        assert b"".join(map(api.encode, api.events(reply, request))).decode() + api.end.decode() == case["stream"]


@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("kind", REPLIES)
def test_types_of_the_sdks_accept_replies(name: str, kind: str) -> None:
    api, (whole, event) = APIS[name], SDK_TYPES[name]
    request = api.read(wire(golden(name)["requests"][-1]["wire"]))
    whole.validate_python(api.body(REPLIES[kind], request))
    for one in api.events(REPLIES[kind], request):
        event.validate_python(dict(one))


@pytest.mark.parametrize(
    ("api", "body", "subject"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE_URL]}]}, "image"),
        (CHAT, {"messages": [USER], "n": 2}, "`n`"),
        (CHAT, {"messages": [USER], "logprobs": True}, "`logprobs`"),
        (CHAT, {"messages": [USER], "response_format": {"type": "json_object"}}, "`response_format`"),
        (CHAT, {"messages": [USER], "tool_choice": "required"}, "`tool_choice`"),
        (CHAT, {"messages": [USER], "tools": [{"type": "custom", "custom": {"name": "x"}}]}, "`custom`"),
        (CHAT, {"messages": [USER, STRAY]}, "call_x"),
        (CHAT, {"messages": [USER, {"role": "assistant", "content": "I"}]}, "assistant"),
        (CHAT, {"messages": []}, "message"),
        (CHAT, {"messages": [{"role": "system", "content": "Play."}]}, "message"),
        (CHAT, {"messages": [USER], "max_tokens": "many"}, "max_tokens"),
        (RESPONSES, {"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}, "image"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "`item_reference`"),
        (RESPONSES, {"input": "Hi.", "tools": [{"type": "web_search"}]}, "`web_search`"),
        (RESPONSES, {"input": "Hi.", "tools": [{"type": "namespace", "name": "a"}]}, "`namespace`"),
        (RESPONSES, {"input": "Hi.", "text": {"format": {"type": "json_schema"}}}, "`text.format`"),
        (RESPONSES, {"input": "Hi.", "include": ["message.output_text.logprobs"]}, "`include`"),
        (RESPONSES, {"input": "Hi.", "truncation": "auto"}, "`truncation`"),
        (RESPONSES, {"input": "Hi.", "background": True}, "`background`"),
        (ANTHROPIC, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        (ANTHROPIC, {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "`document`"),
        (ANTHROPIC, {"messages": [USER], "tools": [{"type": "bash_20250124", "name": "bash"}]}, "`bash_20250124`"),
        (ANTHROPIC, {"messages": [USER], "tool_choice": {"type": "any"}}, "`tool_choice`"),
        (ANTHROPIC, {"messages": [USER], "context_management": {"edits": [CLEARS_RESULTS]}}, "clear_tool_uses"),
        (ANTHROPIC, {"messages": [USER], "output_config": {"format": {}}}, "`format`"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(api: ClientApi, body: dict[str, Any], subject: str) -> None:
    with pytest.raises(RequestRefused, match=subject) as refused:
        api.read(wire(body))
    assert refused.value.status == 400
    assert subject in json.dumps(api.error(refused.value))


SMALLEST: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER]},
    "responses": {"input": "Hi."},
    "anthropic": {"messages": [USER]},
}


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_values_that_change_nothing_are_as_golden(api: ClientApi) -> None:
    body, table = SMALLEST[api.name], golden("neutral")
    for kind in ("changes_nothing", "given_way"):
        for name, values in table[kind].items():
            for value in values:
                assert said(api.read(wire({**body, name: value}))) == said(api.read(wire(body))), (name, value)
    for name, values in table["refused"].items():
        for value in values:
            with pytest.raises(RequestRefused, match=f"`{name}`"):
                api.read(wire({**body, name: value}))


ALL_AT_ONCE: list[tuple[ClientApi, dict[str, Any], list[str]]] = [
    (CHAT, {"n": 2, "logprobs": True, "tool_choice": "required"}, ["`n`", "`logprobs`", "send `auto`"]),
    (ANTHROPIC, {"output_config": {"format": {}}, "tool_choice": {"type": "any"}}, ["`format`", "send `auto`"]),
]


@pytest.mark.parametrize(("api", "asked", "subjects"), ALL_AT_ONCE)
def test_all_that_is_refused_is_named_at_once(api: ClientApi, asked: dict[str, Any], subjects: list[str]) -> None:
    fields = {"guided_json": {}, "prediction": {}}
    with pytest.raises(RequestRefused) as refused:
        api.read(wire({**SMALLEST[api.name], **fields, **asked}))
    for subject in (*subjects, "`guided_json`", "`prediction`"):
        assert subject in str(refused.value)


def test_type_of_a_call_may_be_null() -> None:
    call = {"id": "call_a", "type": None, "function": {"name": "look", "arguments": "{}"}}
    history = [USER, {"role": "assistant", "tool_calls": [call]}, {**STRAY, "tool_call_id": "call_a"}]
    assert [message.role for message in CHAT.read(wire({"messages": history})).messages] == [
        "user",
        "assistant",
        "tool",
    ]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": 5}', b"[" * 100_000, b'{"messages": ["\\ud800"]}'])
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_broken_body_is_refused(api: ClientApi, body: bytes) -> None:
    with pytest.raises(RequestRefused):
        api.read(body)


def test_reasoning_that_claude_code_asks_for_is_the_trainers() -> None:
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    asked = {"output_config": {"effort": "high"}, "context_management": {"edits": edits}}
    plain = said(ANTHROPIC.read(wire({"messages": [USER]})))
    assert said(ANTHROPIC.read(wire({"messages": [USER], **asked}))) == plain


def test_namespace_of_a_tool_comes_back_with_its_call() -> None:
    group = {"type": "namespace", "name": "mcp__home", "description": "", "tools": [{"type": "function", **LOOK}]}
    call = {"type": "function_call", "call_id": "call_a", "namespace": "mcp__home", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_a", "output": "A wall."}
    tools = [group, {"type": "function", **LOOK}]
    request = RESPONSES.read(wire({"input": [USER, call, result], "tools": tools}))
    assert [tool.name for tool in request.tools] == ["mcp__home__look", "look"]
    (said,) = (message for message in request.messages if message.calls)
    assert said.calls[0].name == "mcp__home__look"
    sent = [SentCall(id=tool.name, call=ToolCall(name=tool.name)) for tool in request.tools]
    output = RESPONSES.body(Reply(name="a", calls=tuple(sent)), request)["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [("mcp__home", "look"), (None, "look")]


def test_prompt_too_long_is_said_as_clients_of_anthropic_read_it() -> None:
    error = ANTHROPIC.error(RequestRefused("9 ids of 8", code="context_length_exceeded"))["error"]
    assert error["message"].startswith("prompt is too long")
    assert error["type"] == "invalid_request_error"


WORDS = st.sampled_from([{"role": role, "content": text} for role in ("user", "assistant", "system") for text in "ab"])
BODIES = st.tuples(
    st.lists(WORDS, max_size=5),
    st.sampled_from(["", "a"]),  # the system prompt
    st.booleans(),  # it is written before the messages
    st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", ":")]),
)


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
@given(bodies=st.lists(BODIES, min_size=1, max_size=8), remembered=st.sampled_from([0, 1 << 25]))
def test_memory_of_requests_changes_nothing(api: ClientApi, bodies: list[Any], remembered: int) -> None:
    """Each request is read as if it were the only one, also after the memory was cleared."""
    history = History()
    names = {"responses": ("input", "instructions"), "anthropic": ("messages", "system")}
    messages, system = names.get(api.name, ("messages", "user"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "REMEMBERED", remembered)
        for conversed, text, first, separators in (*bodies, *bodies):
            fields = {system: text, messages: conversed, "model": "m"}
            fields = fields if first else dict(reversed(fields.items()))
            body = json.dumps(fields, separators=separators).encode()
            assert found(api, body, history) == found(api, body, History())


def found(api: ClientApi, body: bytes, history: History) -> ModelRequest | str:
    try:
        return said(api.read(body, history))
    except RequestRefused as refusal:
        return str(refusal)
