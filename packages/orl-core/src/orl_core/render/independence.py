"""Check 8: what follows an action does not depend on the conversation before it.

A plan is made from one short dummy conversation. Here the template renders many others, and the text after the action
must be the same each time. Only the number of earlier calls may key a plan. If only conversations with a system
message, or only those without tools, differ, the certificate says so and `OpeningRenderer` refuses them. Every other
difference refuses the template.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from orl_core.errors import RenderError
from orl_core.messages import ToolSpec
from orl_core.render.dummy import DUMMY_TOOL, HELLO, Dicts, Form, Roles, rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orl_core.render.plan import Plans

RESULTS = 5  # results of one action that are tried; a template that has them in a row can have more
OTHER_TOOLS = (
    ToolSpec(name="ask", description="Ask.", parameters={"type": "object", "properties": {"x": {"type": "string"}}}),
    ToolSpec(name="note", description="Write a note."),
)
_SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
_AGAIN: dict[str, Any] = {"role": "user", "content": "And then?"}
_TEXT = "Let me see."


class Situation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation before the new messages, and how the last action looks."""

    earlier: str
    before: Dicts
    calls_before: int
    system: bool
    tools: Sequence[ToolSpec]
    text: bool
    reasoning: bool

    def form(self, form: Form) -> Form:
        """Return how the dummy's action looks in this situation."""
        content = _TEXT if self.text and form.calls else form.empty
        return structs.replace(form, empty=content, reasoning=self.reasoning)

    def __str__(self) -> str:
        said = [self.earlier, "a system message" if self.system else "no system message"]
        said.append(f"the tools {', '.join(tool.name for tool in self.tools)}" if self.tools else "no tools")
        said.append("text before the call" if self.text else "no text before the call")
        return ", ".join([*said, "reasoning" if self.reasoning else "no reasoning"])


class OpeningLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of an opening, each with the reason; empty where it can.

    `moved` says that the template prints the text of an action behind its calls, where the model did not say it.
    `apart` says that the template refuses reasoning and text before a call in one action.
    """

    system: str = ""
    without_tools: str = ""
    moved: bool = False
    apart: bool = False

    def __or__(self, other: OpeningLimits) -> OpeningLimits:
        return OpeningLimits(
            system=self.system or other.system,
            without_tools=self.without_tools or other.without_tools,
            moved=self.moved or other.moved,
            apart=self.apart or other.apart,
        )


def situations(roles: Roles, form: Form, *, as_text: bool, several: bool) -> Iterable[Situation]:
    """Yield the combinations; `several` says whether an earlier action can have made two calls.

    For one new message these are all combinations. For several messages they are fewer: every start must stay cheap.
    """
    earlier, shown = _earlier(as_text, several), ((DUMMY_TOOL,), OTHER_TOOLS, ())
    looks = ((False, True), (True, True), (False, False), (True, False))
    if len(roles) > 1:
        earlier, shown, looks = [earlier[0], earlier[2], earlier[-1]], shown[::2], ((False, True), (True, False))
    for (rounds_before, before, number), system, tools in product(
        earlier, (False, True), shown if form.tools else ((),)
    ):
        for text, reasoning in looks if form.calls else looks[::2]:
            yield Situation(
                earlier=rounds_before,
                before=[_SYSTEM, *before] if system else before,
                calls_before=number,
                system=system,
                tools=tools,
                text=text,
                reasoning=reasoning,
            )


def _earlier(as_text: bool, several: bool) -> list[tuple[str, Dicts, int]]:
    """Return the earlier rounds: in words, as messages, and how many calls they make."""
    spoken: dict[str, Any] = {"role": "assistant", "content": "Well.", "reasoning_content": "r"}
    silent: dict[str, Any] = {"role": "assistant", "content": "Well."}
    called = rounds([1], as_text=as_text)
    found: list[tuple[str, Dicts, int]] = [
        ("one user message", HELLO, 0),
        ("an answer before", [*HELLO, spoken, _AGAIN], 0),
        ("a call before", called, 1),
        ("a call and an answer before", [*called, silent, _AGAIN], 1),
        ("two rounds of calls before", rounds([1, 1], as_text=as_text), 2),
    ]
    if several:
        found.append(("two calls of one action before", rounds([2], as_text=as_text), 2))
    return found


def compare(made: Plans, roles: Roles, *, several: bool) -> OpeningLimits:
    """Check 8 for new messages of these roles."""
    as_text = made.form(("tool",)).as_text
    wanted: dict[int, str] = {}
    found = OpeningLimits()
    for situation in situations(roles, made.form(roles), as_text=as_text, several=several):
        number = situation.calls_before if made.counting else 0
        if number not in wanted:
            wanted[number] = made.expected(roles, number)
        fault = _fault(made, roles, situation, wanted[number])
        if not fault:
            continue
        if situation.text and _moved(made, roles, situation, wanted[number]):
            found |= OpeningLimits(moved=True)
        elif situation.text and situation.reasoning and _apart(made, roles, situation, wanted[number]):
            found |= OpeningLimits(apart=True)
        elif situation.system and not _fault(made, roles, _without_system(situation), wanted[number]):
            found |= OpeningLimits(system=fault)
        elif made.shown and not situation.tools:
            found |= OpeningLimits(without_tools=fault)
        else:
            raise RenderError(fault)
    return found


def _without_system(situation: Situation) -> Situation:
    return structs.replace(situation, system=False, before=situation.before[1:])


def _fault(made: Plans, roles: Roles, situation: Situation, expected: str) -> str:
    """Return how this situation differs; empty where it does not."""
    where = f"check 8: for {', '.join(roles)} messages after {situation}"
    try:
        found = _tail(made, roles, situation)
    except RenderError as exc:
        return f"{where}: {exc}"
    if found == expected:
        return ""
    return f"{where} the template continues with {found!r}, otherwise with {expected!r}: it depends on the history"


def _moved(made: Plans, roles: Roles, situation: Situation, expected: str) -> bool:
    """Return whether the action's own text is all that the template prints more: law L1 keeps it as it was sampled."""
    try:
        found = _tail(made, roles, situation)
    except RenderError:
        return False
    before, printed, after = found.partition(_TEXT)
    cuts = range(len(expected) + 1)
    return bool(printed) and any(before.startswith(expected[:cut]) and after.endswith(expected[cut:]) for cut in cuts)


def _apart(made: Plans, roles: Roles, situation: Situation, expected: str) -> bool:
    """Return whether the template raises at text with reasoning, and takes each alone: both become one message."""
    try:
        _tail(made, roles, situation)
    except RenderError:
        alone = [structs.replace(situation, text=False), structs.replace(situation, reasoning=False)]
        return not any(_fault(made, roles, one, expected) for one in alone)
    return False


def _tail(made: Plans, roles: Roles, situation: Situation) -> str:
    form = situation.form(made.form(roles))
    return made.tail(roles, before=situation.before, tools=situation.tools, form=form)


def find_counting(made: Plans) -> None:
    """Set `made.counting` where what follows a result depends on the number of calls before."""
    roles: Roles = ("tool",)
    before = rounds([1], as_text=made.form(roles).as_text)
    made.counting = made.tail(roles, before=before) != made.tail(roles)


def several_results(made: Plans, most: int | None) -> OpeningLimits:
    """Check 8 for several results of one action."""
    found = OpeningLimits()
    for number in (2, 3, RESULTS):
        if most is None or number <= most:
            found |= compare(made, ("tool",) * number, several=True)
    return found


def mixed_roles(made: Plans, most: int | None, known: OpeningLimits, notes: list[str]) -> bool:
    """Check 8 for results and a user message together; why they cannot follow goes into `notes`.

    `known` is what an opening cannot have in any case.
    """
    shapes: tuple[Roles, ...] = (("tool", "user"), *([("tool", "tool", "user")] if most != 1 else []))
    fault = ""
    try:
        for roles in shapes:
            made.plan(roles)
            found = compare(made, roles, several=most != 1)
            fault = fault or ("" if known.system else found.system)
            fault = fault or ("" if known.without_tools else found.without_tools)
    except RenderError as exc:
        fault = str(exc)
    if fault:
        notes.append(f"results and a user message cannot follow an action together: {fault}")
    return not fault


def most_calls(made: Plans, notes: list[str]) -> int | None:
    """Return how many calls of one action can have results; None where all that are tried can. `notes` say why."""
    for number in range(2, RESULTS + 1):
        try:
            made.plan(("tool",) * number)
        except RenderError as exc:
            notes.append(f"an action cannot make {number} calls: {exc}")
            return number - 1
    return None
