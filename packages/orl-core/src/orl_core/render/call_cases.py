"""The actions that a template is made to write: arguments of every type, text before calls, several calls.

The names in a case are words that no template prints otherwise.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orl_core.messages import ToolCall, ToolSpec
from orl_core.text import leaves_in
from orl_core.tools.typed import schema_of


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action to render. `shows` are words that the rendering holds where the template can express the case."""

    name: str
    calls: tuple[ToolCall, ...]
    text: str = ""
    shows: tuple[str, ...] = ()


def one_call(name: str, **arguments: Any) -> Case:
    """Return the case of one call with these arguments. Two underscores in their names become a dash."""
    named = {key.replace("__", "-"): value for key, value in arguments.items()}
    keys = [text for path, text in leaves_in(named) if not path]
    return Case(name=name, calls=(ToolCall(name="look", arguments=named),), shows=("look", *keys))


_TWO = (ToolCall(name="look", arguments={"at": "first"}), ToolCall(name="look-up", arguments={"at": "second"}))
_CALLS = ("first", "second", "look-up")
PLAIN = one_call("a call", where="the attic", how=[1, {"deep": False}])
CASES = (
    PLAIN,
    Case(name="no arguments", calls=(ToolCall(name="look"),), shows=("look",)),
    one_call("integers", small=7, negative=-12, large=2**64),
    one_call("floats", part=0.25, whole=2.0, tiny=1e-07),
    one_call("booleans", sure=True, unsure=False),
    one_call("null", nothing=None),
    one_call("lists", full=[1, 2.5, "x y", True, None, [[]]], empty=[]),
    one_call("objects", full={"outer": {"inner": [None, "two words"]}, "user-id": False}, empty={}),
    one_call("strings", plain="a b", unicode="é 漢 😀 \u00a0", empty="", number="7", word="true", json='{"outer": 1}'),
    one_call("quotes", single="it's 'so'", double='say "so"', both="'\"'"),
    one_call("backslashes", path="C:\\new\\table", line="a\\nb"),
    one_call("lines", two="one\ntwo", padded="\n one\n\n", tabbed="\ta\r\nb "),
    one_call("tags", html="<b>a</b> &amp; <i>", braces="{{ x }} {% y %}", brackets="[a(b=1)]"),
    one_call("dashes in names", user__id="a", x__y__z=1),
    Case(name="text before a call", text="Let me see.", calls=_TWO[:1], shows=("Let me see.", "first")),
    Case(name="two calls", calls=_TWO, shows=_CALLS),
    Case(name="text before two calls", text="Let me see.", calls=_TWO, shows=("Let me see.", *_CALLS)),
)


def tools_of(case: Case) -> list[ToolSpec]:
    """Return tools whose schemas state the types of the case's arguments."""
    return [ToolSpec(name=call.name, description="Look.", parameters=schema_of(call.arguments)) for call in case.calls]
