"""Rendered calls are read back from their ids: names, values, types, and strings that spell tags (L4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.messages import Message, ToolCall, ToolSpec, text_message
from orl_core.render.controls import GUARDS, Controls
from orl_core.render.conversation import Dialect, for_template
from orl_core.text import map_strings
from orl_core.tools.format import for_chat_template

from tests.core.render.conversations import few
from tests.core.tools.wire import without_ids
from tests.kit.families import FAMILIES, renderer, tokenizer

NAMES = ["xlam"]
AWKWARD = {  # keys and names of tools that the format escapes
    "json_array": ('a"b', "é\n", "[{"),
}
KINDS: dict[type[object], str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
every_name = pytest.mark.parametrize("name", NAMES)


def values(name: str) -> st.SearchStrategy[Any]:
    """JSON values, strings among them that spell the family's control tokens and delimiters whole and cut."""
    spelled = st.sampled_from(sorted({*tokenizer(name).added_tokens, "<tool_call>", "</invoke>", "</a>", "<item>"}))
    words = (
        spelled | spelled.map(lambda text: text[:-1]) | st.sampled_from(("", "null", "12", "1.0", "true", "[]", "{}"))
    )
    plain = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Co")), max_size=8)
    text = st.lists(words | plain, max_size=3).map("".join).map(lambda text: normalize("NFC", text))
    numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    members = st.sampled_from(("a", "item", "b-c", "type"))
    scalar = st.none() | st.booleans() | numbers | text
    return st.recursive(
        scalar, lambda part: st.lists(part, max_size=3) | st.dictionaries(members, part, max_size=3), max_leaves=6
    )


def schema(value: Any) -> dict[str, Any]:
    """The schema that states the type of a value, and of all that it holds."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema(part) for key, part in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [schema(part) for part in value]}
    return {"type": KINDS[type(value)]}


@st.composite
def actions(draw: st.DrawFn, name: str) -> Message:
    awkward = AWKWARD.get(FAMILIES[name].tool_format, ())
    keys = st.sampled_from(("x", "name", "arguments", "Key_2", *awkward))
    said = values(name)
    call = st.builds(
        ToolCall, name=st.sampled_from(("look", "add_2", *awkward)), arguments=st.dictionaries(keys, said, max_size=3)
    )
    calls = draw(st.lists(call, min_size=1, max_size=3, unique_by=lambda call: call.name))
    text = "" if name == "xlam" else draw(st.sampled_from(("", "Let me see.")))  # which writes calls or text
    return Message(role="assistant", content=text_message("assistant", text).content, calls=tuple(calls))


def sampled(name: str, action: Message, tools: Sequence[ToolSpec]) -> list[int]:
    """The ids of an action as the template renders it, behind the prompt; no string in it makes a control id."""
    tok, controls, guard = tokenizer(name), Controls(tokenizer(name)), GUARDS[0]
    specs = map_strings(for_chat_template(tools), lambda text: controls.guard(text, guard))
    user = text_message("user", "Hi.")

    def rendered(messages: Sequence[Message], *, prompt: bool) -> list[int]:
        dicts = for_template(messages, lambda text: controls.guard(text, guard), Dialect())
        text = tok.apply_chat_template(dicts, tools=specs, add_generation_prompt=prompt)
        return controls.encode(text, guard)

    before, whole = rendered([user], prompt=True), rendered([user, action], prompt=False)
    assert whole[: len(before)] == before
    end = max(index for index, token in enumerate(whole) if token in tok.stop_ids)
    return whole[len(before) : end + 1]


@every_name
@given(data=st.data())
@few
def test_what_the_template_renders_is_read_back_with_its_types(name: str, data: st.DataObject) -> None:
    action = data.draw(actions(name))
    tools = [ToolSpec(name=call.name, parameters=schema(call.arguments)) for call in action.calls]
    found = renderer(name).parse(sampled(name, action, tools), tools)
    assert repr(without_ids(found.calls)) == repr(action.calls)  # 1, 1.0 and True differ, and so does the order of keys
    assert found.text == "".join(block.text for block in action.content)  # type: ignore[union-attr]
    assert found.reasoning == ""
