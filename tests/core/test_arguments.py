"""Public functions refuse an argument of another type by its name, and help() shows them."""

from __future__ import annotations

import inspect
import pydoc
from types import FunctionType, ModuleType
from typing import Any, cast

import orl_core
import orl_rollout
import pytest
from orl_core import Message, ToolResult, ToolSpec, text_message

from tests.kit.tokenizers import renderer_of

SPEC = {"name": "look", "description": "", "parameters": {}}
LOOK = ToolSpec(name="look")


@pytest.mark.parametrize("wrong", [None, {}, 1, b"look"])
@pytest.mark.parametrize(
    ("function", "given", "named"),
    [
        ("parse", (), "text"),
        ("parse", ("a",), "format"),
        ("format_tools", (), "tools"),
        ("format_tools", ([LOOK],), "format"),
        ("render_call", (), "call"),
        ("reduce_reward", (), "trajectory"),
        ("group_rewards", ([1.0], [None]), "config"),
        ("to_data", (), "trajectory"),
        ("row_of", (), "task"),
        ("text_of", (), "content"),
        ("Renderer", (), "tokenizer"),
    ],
)
def test_argument_of_another_type_is_refused_by_name(function: str, given: tuple[Any, ...], named: str, wrong: object):
    options = {"reward": 1.0} if function == "to_data" else {"config": None} if function == "reduce_reward" else {}
    with pytest.raises(TypeError, match=f"`{named}` .*{type(wrong).__name__}"):
        getattr(orl_core, function)(*given, wrong, **options)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: orl_core.parse("a", tools=[LOOK, None]), r"tools\[1\]"),  # pyright: ignore[reportArgumentType]
        (lambda: orl_core.format_tools([SPEC]), r"tools\[0\]"),  # pyright: ignore[reportArgumentType]
        (lambda: orl_core.system_prompt([SPEC], template="{tools}"), r"tools\[0\]"),  # pyright: ignore[reportArgumentType]
        (lambda: orl_core.text_of([{"type": "text", "text": "a"}]), r"content\[0\]"),  # pyright: ignore[reportArgumentType]
        (lambda: Message(role="user", content="Hello").text, "`content` "),  # pyright: ignore[reportArgumentType]
        (lambda: renderer_of().open([{"role": "user"}], ()), r"messages\[0\]"),  # pyright: ignore[reportArgumentType]
        (lambda: renderer_of().open([text_message("user", "a")], [SPEC]), r"tools\[0\]"),  # pyright: ignore[reportArgumentType]
        (lambda: renderer_of().extend((1,), [ToolResult(name="look")], calls_before=0), r"messages\[0\]"),  # pyright: ignore[reportArgumentType]
        (lambda: renderer_of().write("text"), "action"),  # pyright: ignore[reportArgumentType]
        (lambda: renderer_of().parse((1,), [SPEC]), r"tools\[0\]"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_member_of_another_type_is_refused_by_its_place(call: Any, named: str):
    with pytest.raises(TypeError, match=named):
        call()


def test_any_iterable_of_members_is_taken():
    once, opening = cast("Any", iter), [text_message("user", "a")]
    assert orl_core.parse("a", tools=once([LOOK])) == orl_core.parse("a", tools=cast("Any", None))
    assert orl_core.format_tools(once([LOOK])) == orl_core.format_tools([LOOK])
    assert renderer_of().open(once(opening), once([LOOK])) == renderer_of().open(opening, [LOOK])


@pytest.mark.parametrize("package", [orl_core, orl_rollout])
def test_help_shows_every_public_name_and_signature(package: ModuleType):
    shown = pydoc.plain(pydoc.render_doc(package))
    functions = [name for name in package.__all__ if isinstance(getattr(package, name), FunctionType)]
    assert len(functions) > 5
    assert [name for name in package.__all__ if name not in shown] == []
    assert [name for name in functions if f"{name}{inspect.signature(getattr(package, name))}"[:60] not in shown] == []
    assert {*package.__all__} <= {*dir(package)}
