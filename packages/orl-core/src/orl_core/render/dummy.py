"""The dummy conversations of plans: sentinels in all that varies, and their places in the rendering.

It knows no templates and no tokens. Templates accept a sentinel as a call id and as a function's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from orl_core.messages import Role, ToolSpec
from orl_core.render.conversation import call_dict, call_id, tool_dict

Roles = tuple[Role, ...]
Dicts = Sequence[Mapping[str, Any]]

DUMMY_TOOL = ToolSpec(name="look", description="Look.")
HELLO: Dicts = ({"role": "user", "content": "Hi."},)
KINDS = "cni"  # what of a new message has a slot: its content, its name, the id of the call that it answers
_SENTINEL = re.compile(r"Zq([acni])(\d{6})")
_SLOT = re.compile(rf"(Zq[{KINDS}]\d{{6}})")


class Form(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of the dummy's action: with calls or with text, arguments as JSON text or as an object, its content if
    it has calls, and with or without reasoning.
    """

    calls: bool
    as_text: bool = False
    empty: str | None = ""
    reasoning: bool = True


def dummy(roles: Roles, form: Form, contents: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return an action and new messages, with sentinels in all that varies; `contents` replace those of contents."""
    action: dict[str, Any] = {"role": "assistant", "content": form.empty}
    if form.reasoning:
        action["reasoning_content"] = "r"
    new: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for index, role in enumerate(roles):
        content = contents[index] if contents else sentinel("c", index)
        if role == "tool":
            name, call = sentinel("n", index), sentinel("i", index)
            calls.append(call_dict(name, {"x": sentinel("a", len(calls))}, call=call, as_text=form.as_text))
            new.append(tool_dict(content, name=name, call=call))
        else:
            new.append({"role": role, "content": content})
    if calls and form.calls:
        action["tool_calls"] = calls
    else:
        action["content"] = " ".join(sentinel("a", number) for number in range(max(1, len(calls))))
    return [action, *new]


def rounds(sizes: Sequence[int], *, as_text: bool) -> list[dict[str, Any]]:
    """Return a history: one user message, then actions of so many calls with their results."""
    history: list[dict[str, Any]] = [dict(message) for message in HELLO]
    first = 0
    for size in sizes:
        ids = [call_id(first + number) for number in range(size)]
        first += size
        calls = [call_dict("look", {"x": "1"}, call=name, as_text=as_text) for name in ids]
        history.append({"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": calls})
        history += [tool_dict("Nothing.", name="look", call=name) for name in ids]
    return history


def sentinel(kind: str, number: int) -> str:
    """Return the sentinel of the content, name or call id of new message `number`, or of the action's call `number`."""
    return f"Zq{kind}{number:06d}"


def split_slots(tail: str) -> list[str | int]:
    """Split the tail at slots: 3·i, 3·i+1 and 3·i+2 are content, name and call id of new message i."""
    parts: list[str | int] = []
    for number, text in enumerate(_SLOT.split(tail)):
        if number % 2:
            parts.append(len(KINDS) * int(text[3:]) + KINDS.index(text[2]))
        elif text:
            parts.append(text)
    return parts


def without_slots(tail: str) -> str:
    """Return the tail with a line break for each slot."""
    return _SLOT.sub("\n", tail)


def misplaced(roles: Roles, head: str, tail: str) -> str:
    """Return what is wrong with a tail; empty if nothing is.

    Every call precedes the tail; the tail has every content once, in order, with its own call's name and id.
    """
    before, followed = _numbers(head), _numbers(tail)
    results = [index for index, role in enumerate(roles) if role == "tool"]
    calls = list(range(max(1, len(results))))
    if before["a"] != calls:
        return f"of {len(calls)} calls it prints {before['a']}, not each once and in order"
    wanted, printed = list(range(len(roles))), before["c"] + followed["c"]
    if followed["c"] != wanted or before["c"]:
        if not printed:
            return f"it does not print the {roles[0]} messages"
        return f"it prints the new contents as {printed}, not each once and in order {wanted}"
    for kind, what in (("n", "name"), ("i", "id")):
        seen = followed[kind]
        if seen and (seen != sorted(seen) or set(seen) != set(results)):
            return f"it prints the {what}s of calls {seen} but the results {results}"
    return ""


def _numbers(text: str) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {kind: [] for kind in "acni"}
    for kind, number in _SENTINEL.findall(text):
        numbers[kind].append(int(number))
    return numbers
