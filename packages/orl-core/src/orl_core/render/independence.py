"""Check 8: what follows an action does not depend on the conversation before it.

A plan is made from one short dummy conversation. Here the template renders many others, and the text after the action
must be the same each time. Only the number of earlier calls may key a plan. If only conversations with a system
message, or only those without tools, differ, the certificate says so and `OpeningRenderer` refuses them. Every other
difference refuses the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Literal

from msgspec import Struct, structs

from orl_core.errors import RenderError
from orl_core.messages import ToolSpec
from orl_core.render.dummy import DUMMY_TOOL, HELLO, Dicts, Roles, rounds, sentinel
from orl_core.render.plan import Plans

RESULTS = 5  # results of one action that are tried; a template that has them in a row can have more
OTHER_TOOLS = (
    ToolSpec(name="ask", description="Ask.", parameters={"type": "object", "properties": {"x": {"type": "string"}}}),
    ToolSpec(name="note", description="Write a note."),
)
_SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
_ANSWER: dict[str, Any] = {"role": "assistant", "content": "Well."}
_AGAIN: dict[str, Any] = {"role": "user", "content": "And then?"}
_TEXT = "Let me see."


class Situation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation before the new messages, and how the last action looks."""

    earlier: str
    before: Dicts
    system: bool
    tools: Sequence[ToolSpec]
    text: bool
    reasoning: bool

    def __str__(self) -> str:
        words = [self.earlier, "a system message" if self.system else "no system message"]
        words.append(f"the tools {', '.join(tool.name for tool in self.tools)}" if self.tools else "no tools")
        words.append("text before the call" if self.text else "no text before the call")
        return ", ".join([*words, "reasoning" if self.reasoning else "no reasoning"])


# Limits of a template, each with a reason. `system` and `without_tools`: an opening cannot have a system message, or be
# without tools. `moved`: the template prints the text after the calls, although the model generated it before them.
# `apart`: the template refuses reasoning and text before a call in one action.
Limit = Literal["system", "without_tools", "moved", "apart"]
TemplateLimits = dict[Limit, str]


def situations(plans: Plans, roles: Roles, *, several: bool) -> Iterable[Situation]:
    """Yield the combinations; `several` says whether an earlier action can have made two calls.

    For one new message these are all combinations. For several messages they are fewer: every start must stay cheap.
    """
    earlier, shown = _earlier(plans.form(("tool",)).as_text, several), ((DUMMY_TOOL,), OTHER_TOOLS, ())
    looks = ((False, True), (True, True), (False, False), (True, False))
    if len(roles) > 1:
        earlier, shown, looks = [earlier[0], earlier[2], earlier[-1]], shown[::2], ((False, True), (True, False))
    for (rounds_before, before), system, tools in product(earlier, (False, True), shown if plans.shown else ((),)):
        for text, reasoning in looks if plans.form(roles).calls else looks[::2]:
            yield Situation(
                earlier=rounds_before,
                before=[_SYSTEM, *before] if system else before,
                system=system,
                tools=tools,
                text=text,
                reasoning=reasoning,
            )


def _earlier(as_text: bool, several: bool) -> list[tuple[str, Dicts]]:
    """Return the earlier rounds: in words, and as messages."""
    called = rounds([1], as_text=as_text)
    rounds_before: list[tuple[str, Dicts]] = [
        ("one user message", HELLO),
        ("an answer before", [*HELLO, {**_ANSWER, "reasoning_content": "r"}, _AGAIN]),
        ("a call before", called),
        ("a call and an answer before", [*called, _ANSWER, _AGAIN]),
        ("two rounds of calls before", rounds([1, 1], as_text=as_text)),
    ]
    if several:
        rounds_before.append(("two calls of one action before", rounds([2], as_text=as_text)))
    return rounds_before


def compare(plans: Plans, roles: Roles, *, several: bool) -> TemplateLimits:
    """Check 8 for new messages of these roles."""
    wanted: dict[int, str] = {}
    limits: TemplateLimits = {}
    for situation in situations(plans, roles, several=several):
        number = sum(message["role"] == "tool" for message in situation.before) if plans.counting else 0
        if number not in wanted:
            wanted[number] = plans.expected(roles, number)
        tail, fault = _tail(plans, roles, situation, wanted[number])
        if not fault:
            continue
        plain = structs.replace(situation, system=False, before=situation.before[1:])
        if situation.text and tail and _is_moved(tail, roles, wanted[number]):
            limits.setdefault("moved", fault)
        elif situation.text and situation.reasoning and not tail and _apart(plans, roles, situation, wanted[number]):
            limits.setdefault("apart", fault)
        elif situation.system and not _tail(plans, roles, plain, wanted[number])[1]:
            limits.setdefault("system", fault)
        elif plans.shown and not situation.tools:
            limits.setdefault("without_tools", fault)
        else:
            raise RenderError(fault)
    return limits


def _tail(plans: Plans, roles: Roles, situation: Situation, expected: str) -> tuple[str, str]:
    """Return the tail in this situation, empty if the template refuses it, and how it differs, empty if it does not."""
    where = f"check 8: for {', '.join(roles)} messages after {situation}"
    form = plans.form(roles)
    content = _TEXT if situation.text and form.calls else form.empty
    form = structs.replace(form, empty=content, reasoning=situation.reasoning)
    try:
        tail = plans.tail(roles, before=situation.before, tools=situation.tools, form=form)
    except RenderError as exc:
        return "", f"{where}: {exc}"
    if tail == expected:
        return tail, ""
    other = f"the template continues with {tail!r}, otherwise with {expected!r}: it depends on the history"
    return tail, f"{where} {other}"


def _is_moved(tail: str, roles: Roles, expected: str) -> bool:
    """Return whether the action's own text is all that the template prints more: law L1 keeps it as it was sampled.

    Behind the last new message it may be followed by an end of the turn, which is not printed without it.
    """
    before, printed, after = tail.partition(_TEXT)
    cuts = range(len(expected) + 1)
    inside = any(before.startswith(expected[:cut]) and after.endswith(expected[cut:]) for cut in cuts)
    behind = expected.startswith(before) and all(sentinel("c", index) in before for index in range(len(roles)))
    return bool(printed) and (inside or behind)


def _apart(plans: Plans, roles: Roles, situation: Situation, expected: str) -> bool:
    """Return whether the template takes text and reasoning each alone, as it raises at both in one message."""
    alone = [structs.replace(situation, text=False), structs.replace(situation, reasoning=False)]
    return not any(_tail(plans, roles, one, expected)[1] for one in alone)


def compare_results(plans: Plans, most: int | None) -> TemplateLimits:
    """Check 8 for one result of an action, and for several."""
    limits: TemplateLimits = {}
    for number in (1, 2, 3, RESULTS):
        if most is None or number <= most:
            limits = compare(plans, ("tool",) * number, several=most != 1) | limits
    return limits


def mixed_roles(plans: Plans, most: int | None, known: TemplateLimits, notes: list[str]) -> bool:
    """Check 8 for results and a user message together; why they cannot follow goes into `notes`.

    `known` is what an opening cannot have in any case.
    """
    shapes: tuple[Roles, ...] = (("tool", "user"), *([("tool", "tool", "user")] if most != 1 else []))
    fault = ""
    try:
        for roles in shapes:
            plans.plan(roles)
            limits = compare(plans, roles, several=most != 1)
            new = (why for limit, why in limits.items() if limit in ("system", "without_tools") and limit not in known)
            fault = fault or next(new, "")
    except RenderError as exc:
        fault = str(exc)
    if fault:
        notes.append(f"results and a user message cannot follow an action together: {fault}")
    return not fault


def most_calls(plans: Plans, notes: list[str]) -> int | None:
    """Return how many calls of one action can have results; None where all that are tried can. `notes` say why."""
    for number in range(2, RESULTS + 1):
        try:
            plans.plan(("tool",) * number)
        except RenderError as exc:
            notes.append(f"an action cannot make {number} calls: {exc}")
            return number - 1
    return None
