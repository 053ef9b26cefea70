"""One set of calls is answered by one set of results: anything else is refused, as OpenAI and Anthropic refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest
from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.dialects.responses import RESPONSES

from tests.gateway.agents import LOOK, Model
from tests.gateway.test_dialects import APIS, wire
from tests.gateway.test_server import CHAT_TOOLS, USER, continued, served

AGAIN: Any = {"role": "user", "content": "Go on."}
WORDS = {  # that clients of each provider look for
    "chat": "tool_call_ids did not have response messages: ",
    "responses": "No tool output found for function call: ",
    "anthropic": "`tool_use` ids were found without `tool_result` blocks immediately after: ",
}
every_api = pytest.mark.parametrize("name", APIS)


def chat(ids: Sequence[str], results: Sequence[str]) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id_ in ids]
    answers = [{"role": "tool", "tool_call_id": id_, "content": f"Saw {id_}."} for id_ in results]
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *answers, AGAIN]}


def responses(ids: Sequence[str], results: Sequence[str]) -> dict[str, Any]:
    calls = [{"type": "function_call", "call_id": id_, "name": "look", "arguments": "{}"} for id_ in ids]
    answers = [{"type": "function_call_output", "call_id": id_, "output": f"Saw {id_}."} for id_ in results]
    return {"input": [USER, *calls, *answers, AGAIN]}


def messages(ids: Sequence[str], results: Sequence[str]) -> dict[str, Any]:
    calls = [{"type": "tool_use", "id": id_, "name": "look", "input": {}} for id_ in ids]
    answers = [{"type": "tool_result", "tool_use_id": id_, "content": f"Saw {id_}."} for id_ in results]
    said = [*answers, {"type": "text", "text": "Go on."}]
    return {"messages": [USER, {"role": "assistant", "content": calls}, {"role": "user", "content": said}]}


BODIES = {"chat": chat, "responses": responses, "anthropic": messages}


def refusal(name: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what is said of a body, and the error as the API writes it."""
    with pytest.raises(RequestRefused) as refused:
        APIS[name].read(wire(body))
    assert refused.value.status == 400
    return str(refused.value), APIS[name].error(refused.value)["error"]


@every_api
@pytest.mark.parametrize(
    ("results", "missing"), [((), "call_a, call_b, call_c"), (("call_c", "call_a"), "call_b")], ids=("all", "one")
)
def test_calls_without_a_result_are_named(name: str, results: Sequence[str], missing: str) -> None:
    said, error = refusal(name, BODIES[name](("call_a", "call_b", "call_c"), results))
    assert f"{WORDS[name]}{missing}. " in said
    assert error["type"] == "invalid_request_error"
    assert error["message"] == said


@every_api
def test_second_result_of_a_call_is_named(name: str) -> None:
    said, error = refusal(name, BODIES[name](("call_a", "call_b"), ("call_a", "call_b", "call_a")))
    assert "`call_a`" in said
    assert "`call_b`" not in said
    assert error["type"] == "invalid_request_error"


@every_api
def test_result_without_a_call_is_named(name: str) -> None:
    said, _ = refusal(name, BODIES[name](("call_a",), ("call_a", "call_x")))
    assert "`call_x`" in said


@every_api
def test_results_in_another_order_are_in_that_of_the_calls(name: str) -> None:
    request = APIS[name].read(wire(BODIES[name](("call_a", "call_b", "call_c"), ("call_c", "call_a", "call_b"))))
    assert [message.text for message in request.messages if message.role == "tool"] == [
        *("Saw call_a.", "Saw call_b.", "Saw call_c.")
    ]


async def test_agent_that_answers_what_was_missing_goes_on() -> None:
    """The refused request changes nothing: what was sampled stays one row."""
    async with served(Model(("calls", "text"))) as play, play.openai() as client:
        said: list[Any] = [USER]
        asked: Any = {"model": "m", "tools": CHAT_TOOLS}
        message = (await client.chat.completions.create(messages=said, **asked)).choices[0].message
        first, second = (call.id for call in message.tool_calls or ())
        said += [message.to_dict(), {"role": "tool", "tool_call_id": second, "content": "A wall."}]
        with pytest.raises(openai.BadRequestError, match=first) as refused:
            await client.chat.completions.create(messages=[*said, AGAIN], **asked)
        assert second not in str(refused.value)
        said.append({"role": "tool", "tool_call_id": first, "content": "A door."})
        await client.chat.completions.create(messages=said, **asked)
        assert continued(play.episode) == [None, None]


async def test_answer_that_is_continued_by_its_id_needs_results() -> None:
    async with served(Model(("call",))) as play, play.openai() as client:
        tools: Any = [{"type": "function", **LOOK}]
        answer = await client.responses.create(model="m", input="Begin.", tools=tools)
        with pytest.raises(openai.BadRequestError, match="No tool output found"):
            await client.responses.create(model="m", input="Go on.", previous_response_id=answer.id, tools=tools)


@every_api
def test_calls_that_were_answered_earlier_are_not_named(name: str) -> None:
    (key, earlier), (_, later) = [
        *BODIES[name](("call_1",), ("call_1",)).items(),
        *BODIES[name](("call_2",), ()).items(),
    ]
    said, _ = refusal(name, {key: [*earlier, *later[1:]]})
    assert f"{WORDS[name]}call_2. " in said


def test_output_of_a_call_may_follow_a_message() -> None:
    """Responses asks for an output of each call, at any place."""
    items = responses(("call_a",), ("call_a",))["input"]
    request = RESPONSES.read(wire({"input": [items[0], items[1], items[3], items[2]]}))
    assert sorted(message.role for message in request.messages) == ["assistant", "tool", "user", "user"]
