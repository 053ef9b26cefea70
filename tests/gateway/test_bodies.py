"""Bodies that begin like an earlier one: read as if each were the only one, and known messages are scanned once."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw, Struct
from orl_gateway.dialects import RequestRefused, bodies
from orl_gateway.dialects.bodies import Bodies
from orl_gateway.dialects.reading import NO_TOOLS, read_body

HEADS = (
    '{"messages":[',
    '{"model":"m", "messages": [ ',
    '{"tools":[{"a":"x"}],"messages":[',
    '{"tools":[1],"messages":[',
)
TAILS = ("]}", ' ], "tools": []}', '],"messages":[{"a":"y"}]}', ",]}", "] ]}", '],"model":"messages"}')
MEMBERS = (
    '{"a":"x"}',
    '{"a":"y"}',
    '"x"',
    '"\\"]"',
    '"[\\u0041"',
    "1",
    "12",
    "{}",
    "[]",
    " ",
    "",
    '{"a":',
    '"',
    '{"cache_control":1}',
)
TEXTS = st.builds(
    lambda head, members, comma, tail: f"{head}{comma.join(members)}{tail}",
    st.sampled_from(HEADS),
    st.lists(st.sampled_from(MEMBERS), max_size=5),
    st.sampled_from((",", " , ", "")),
    st.sampled_from(TAILS),
)


class Body(Struct):
    messages: Raw
    tools: Raw = NO_TOOLS
    model: str = ""


def read(body: bytes) -> Body:
    return read_body(body, Body, lambda _: ())


def found(memory: Bodies, body: bytes) -> tuple[Body, list[bytes]] | str:
    """Return what is read of `body`, less its list, and its members; or the refusal."""
    try:
        asked, parts = memory.read(body, "messages", read)
    except RequestRefused as refusal:
        return str(refusal)
    return Body(messages=NO_TOOLS, tools=Raw(bytes(asked.tools)), model=asked.model), parts


@given(st.lists(TEXTS, min_size=1, max_size=8))
@example(['{"messages":[{}]}', '{"messages":[{}], "messages":[{"a":"x"}]}'])
@example(['{"tools":[{}],"messages":[{}]}', '{"tools":[{}],"messages":[{},1]}'])
@example(['{"messages":[1]}', '{"messages":[12]}', '{"messages":[1,]}'])
@example(['{"messages":[]}', '{"messages":[,1]}', '{"messages":[1]}'])
@example(['{"messages":[1 , 2,{"cache_control":1} ]}', '{"messages":[1 , 2,{},3]}', '{"messages":[1 , 2,{},3,4]}'])
def test_bodies_are_read_as_if_alone(texts: list[str]) -> None:
    memory = Bodies()
    for text in (*texts, *texts):
        body = text.encode()
        assert found(memory, body) == found(Bodies(), body)
        assert memory.digest(body) == sha256(body).digest()


def test_sloppy_match_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rest_of(self: Any, body: bytes) -> bytes:
        return body[self.end :]

    one, other = b'{"messages":["x"]}', b'{"messages":["y"]}'
    monkeypatch.setattr(bodies._Beginning, "rest_of", rest_of)  # pyright: ignore[reportPrivateUsage]
    memory = Bodies()
    found(memory, one)
    assert found(memory, other) != found(Bodies(), other)
    assert memory.digest(other) != sha256(other).digest()


@pytest.mark.parametrize("beside", [{}, {"tools": [{"a": "x" * 50}]}])
def test_known_messages_are_not_scanned_again(beside: dict[str, object]) -> None:
    memory, messages, sizes = Bodies(), list[object](), list[int]()

    def reads(body: bytes) -> Body:
        sizes.append(len(body))
        return read(body)

    for _ in range(50):
        messages += [{"role": "assistant", "content": "I look."}, {"role": "tool", "content": "A wall."}]
        _, parts = memory.read(json.dumps({**beside, "messages": messages}).encode(), "messages", reads)
        assert [json.loads(part) for part in parts] == messages
    assert len(sizes) == 50
    assert len(set(sizes[1:])) == 1
    assert len({id(one.text) for one in memory._known}) == 1  # pyright: ignore[reportPrivateUsage]


def test_conversations_side_by_side_are_known() -> None:
    memory, sizes = Bodies(), list[int]()

    def reads(body: bytes) -> Body:
        sizes.append(len(body))
        return read(body)

    for count in range(1, 20):
        for name in ("a", "b", "c"):
            memory.read(json.dumps({"messages": [name] * count}).encode(), "messages", reads)
    assert len(set(sizes[3:])) == 1
