"""The certificate: what a tokenizer and its chat template must pass before a run may trust them.

Hard checks raise RenderError and say which law fails on which text with which ids; soft ones are reported. The order is
that of dependence: a later check believes what an earlier one has shown. Nothing here is a test double: the checks run
on the renderer's own parts, at every start, in well under a second.
"""

from __future__ import annotations

import unicodedata
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orl_core.errors import RenderError
from orl_core.messages import Role, ToolSpec, text_message
from orl_core.render.calls import DUMMY_CALL, DUMMY_TOOLS, CallReader, render_call
from orl_core.render.conversation import call_dict, tool_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orl_core.render.controls import Controls
    from orl_core.render.opening import Opening
    from orl_core.render.plan import Plans, Roles
    from orl_core.render.tokenizer import Tokenizer

BENIGN = (
    *("", " ", "a", " a", "a ", "\na", "a\n", "\n\na\n\n", "a\r\n", "\ta\t", ".", "a.", ").", ":\n", "...", "0", "42"),
    *("1234567890", "3.14159", "-1e-5", "The door is locked.", "It's Bob's; isn't it?", "x = {'a': [1, 2]}", "</b>"),
    *(
        '{"a": {"b": [null, true]}}',
        "<b>bold</b>",
        "def f(x):\n    return x\n",
        "| a | b |\n|---|---|",
        "漢字かな交じり",
    ),
    *(
        "한국어",
        "Привет, мир",
        "naïve café",
        "שלום",
        "مرحبا",
        "😀👍🏽",
        "👨\u200d👩\u200d👧",
        "a\u00a0b",
        "\u200b",
        "   ",
    ),
    *(
        "line\n" * 3,
        "# Title\n\n- item\n- item\n",
        "$x^2$",
        "https://example.org/?q=1&r=2",
        "C:\\temp\\new",
        "~!@#%^&*()",
    ),
    *("A" * 64, "the " * 20, "\n", "\n\n\n", "e\u0301", "0x1F", "é", "end\n "),
)
ADVERSARIAL_TOKENS = 64  # control strings tried at the slots; check 3 has tried every one of them alone


class Check(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a certificate. `detail` is what was found."""

    check: str
    passed: bool
    detail: str


class Certificate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was checked, in order, and what a reader should know about the template."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the soft checks passed too; the hard ones have, or there would be no certificate."""
        return all(check.passed for check in self.checks)


def _hard(check: str, detail: str) -> Check:
    return Check(check=check, passed=True, detail=detail)


def before_plans(tokenizer: Tokenizer, controls: Controls) -> list[Check]:
    """Checks 2, 3 and 5: the vocabulary alone.

    Raises:
        RenderError: a check fails.
    """
    named = {token: text for text, token in controls.ids.items()}
    stops = tokenizer.stop_ids
    if not stops or any(stop not in named for stop in stops):
        raise RenderError(f"check 2, law L4: the stop ids {stops} are not all added tokens, so text could stop a turn")
    for text in controls.ids:
        if len(text) < 2 or text.isspace():
            raise RenderError(f"check 3, law L4: the added token {text!r} cannot be told from text and guarded")
    texts = ["", *(shape for text in controls.ids for shape in (text, f"a {text}b"))]
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        leaked = controls.id_set.intersection(ids)
        if leaked or bool(ids) != bool(text):
            raise RenderError(f"check 3, law L4: the plain encoder turns {text!r} into {ids}, control ids {leaked}")
    for text, ids in zip(BENIGN, tokenizer.encode(BENIGN), strict=True):
        back = tokenizer.decode(ids)
        if back != unicodedata.normalize("NFC", text) and back != text:
            raise RenderError(f"check 5: {text!r} becomes {ids} and comes back as {back!r}")
    return [
        _hard("2 stops", ", ".join(f"{named[stop]} {stop}" for stop in stops)),
        _hard("3 text is text", f"{len(controls.ids)} control strings, none reachable by plain encoding"),
        _hard("5 round trip", f"{len(BENIGN)} texts"),
    ]


def plans(made: Plans) -> list[Check]:
    """Checks 4, 6 to 10 and 12: what follows an action.

    Raises:
        RenderError: a check fails.
    """
    single: tuple[Roles, ...] = (("tool",), ("user",))
    several: tuple[Roles, ...] = (("tool", "tool"), ("tool", "tool", "tool"), ("tool", "user"))
    for roles in (*single, *several):  # 6, 9: plans exist, slots once and in order
        made.plan(roles)
    transforms = {role: made.transform(role) for role in _ROLES}
    for roles in single:
        _independent(made, roles)
        _spliced(made, roles)
        _adversarial(made, roles)
    closings = {roles: made.plan(roles).closing for roles in (*single, *several)}
    if len(set(closings.values())) > 1:
        raise RenderError(f"check 10: an action is closed by different tokens before different roles: {closings}")
    for roles in (*single, *several):
        tail = made.plan(roles).parts[0]
        stops = [text for text in made.controls.sequence(tail if isinstance(tail, str) else "") if text in made.stops]
        if len(stops) != 1:
            raise RenderError(f"check 10: {len(stops)} stop tokens stand between an action and the next {roles[0]}")
    closing = next(text for text, token in made.controls.ids.items() if token in closings.values())
    return [
        _hard("4 splice is joint", f"{len(BENIGN)} texts for each role"),
        _hard("6 plans", "tool results and user messages can follow an action"),
        _hard("7 contents", ", ".join(f"{role} {transform}" for role, transform in transforms.items())),
        _hard("8 independence", "what follows an action is the same after every history, with and without tools"),
        _hard("9 several calls", "two and three results, and a user message after a result"),
        _hard("10 closing", f"an action is closed by {closing}"),
        _hard("12 adversarial slots", "control strings alone, doubled, cut and at the edges stay text"),
    ]


_ROLES: tuple[Role, ...] = ("tool", "user")


def _independent(made: Plans, roles: Roles) -> None:
    """Check 8: the tail does not depend on earlier rounds, on a system message or on tools."""
    user: dict[str, Any] = {"role": "user", "content": "Hi."}
    system: dict[str, Any] = {"role": "system", "content": "Be brief."}
    call = call_dict("look", {"x": "1"}, call="c90000000")
    rounds: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call]},
        tool_dict("Nothing.", name="look", call="c90000000"),
    ]
    expected = made.tail(roles)
    spoken: dict[str, Any] = {"role": "assistant", "content": "Well.", "reasoning_content": "r"}
    histories = ([user, *rounds], [user, *rounds, *rounds], [system, user], [user, spoken, user])
    for before in histories:
        for tools in (False, True):
            found = made.tail(roles, before=before, tools=tools)
            if found != expected:
                history = ", ".join(str(message["role"]) for message in before)
                raise RenderError(
                    f"check 8: after {history} and {'with' if tools else 'without'} tools the template continues with "
                    f"{found!r}, otherwise with {expected!r}: what it prints depends on the history"
                )


def _spliced(made: Plans, roles: Roles) -> None:
    """Check 4: the plan's ids are those of the joint encoding of the same text."""
    plan = made.plan(roles)
    for text in BENIGN:
        values = made.values(roles, (text,), ("look",))
        ours, joint = plan.ids(made.tokenizer, values), made.tokenizer.encode_joint(plan.text(values))
        if ours != joint:
            raise RenderError(f"check 4: {roles[0]} content {text!r} becomes {ours}, the joint encoding is {joint}")


def _adversarial(made: Plans, roles: Roles) -> None:
    """Check 12: no content changes the control ids of a plan. All contents go through the encoder in one batch."""
    plan, ids = made.plan(roles), made.controls.id_set
    blank = [token for token in plan.ids(made.tokenizer, made.values(roles, ("x",), ("x",))) if token in ids]
    for text in attacks(made.controls):
        found = plan.ids(made.tokenizer, made.values(roles, (text,), ("look",)))
        if [token for token in found if token in ids] != blank:
            raise RenderError(f"check 12, law L4: {roles[0]} content {text!r} brings control ids: {found}")


def attacks(controls: Controls) -> list[str]:
    """Contents that try to become control ids: alone, doubled, cut at either end, at the edges of a slot."""
    return [
        attack
        for text in list(controls.ids)[:ADVERSARIAL_TOKENS]
        for attack in (text, text * 2, text[:-1], text[1:], f"{text}\n", f" {text}", f"{text[:-1]}{text}", text[:1])
    ]


def openings(opening: Opening, controls: Controls) -> list[Check]:
    """Checks 11 and 12 for the opening: the model is shown its tools, and every text from outside stays text.

    Raises:
        RenderError: the check fails.
    """
    user = text_message("user", "Hi.")
    if "Zqtool" not in opening.text([user], [ToolSpec(name="Zqtool")], str):
        raise RenderError("check 11: the chat template does not show the tools: set `system_prompt_template`")
    text = " ".join(controls.ids)
    schema = {"type": "object", "properties": {"where": {"type": "string", "description": text}}}
    tool = ToolSpec(name="look", description=text, parameters=schema)
    for messages in ([text_message("user", text)], [text_message("system", text), text_message("user", text)]):
        opening.ids(messages, [tool])
    return [
        _hard("11 tools", "the opening shows the tools"),
        _hard("12 adversarial openings", "control strings in system, user and tool texts stay text"),
    ]


def report(checks: Sequence[Check], made: Plans, calls: CallReader) -> Certificate:
    """The certificate: the hard checks that have passed, the soft ones, and notes."""
    tokenizer = made.tokenizer
    unequal = unlike_template(made)
    equality = Check(
        check="13 equal to the template",
        passed=not unequal,
        detail=unequal or f"{CONVERSATIONS} random conversations end as the template's own full rendering does",
    )
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Zqu"}], tools=None, add_generation_prompt=True)
    before, _, after = prompt.partition("Zqu")
    system = [line for line in made.controls.split(before)[::2] if len(line.split()) > 1]
    notes = [f"an action begins after {after!r}, {'inside' if calls.reasoning_opened else 'outside'} reasoning"]
    if system:
        notes.append(f"without a system message the template supplies its own: {' '.join(system)[:200]!r}")
    return Certificate(checks=(*checks, equality, _parses(made, calls)), notes=tuple(notes))


def _parses(made: Plans, calls: CallReader) -> Check:
    """Whether the parser reads back a call that the template rendered. A template that ignores calls fails this."""
    rendered = render_call(made.tokenizer, tools=True)
    found = calls.read(made.tokenizer.encode_joint(rendered), DUMMY_TOOLS).calls
    passed = found == (DUMMY_CALL,)
    return Check(check="parse after render", passed=passed, detail="equal" if passed else f"{rendered!r} gives {found}")


CONVERSATIONS = 30


def unlike_template(made: Plans) -> str:
    """Check 13: the first random conversation whose full rendering does not end in the plan's text; empty if none.

    The full rendering is the template's own, of the whole history: it may rewrite what came before, never the end.
    """
    random = Random(0)  # noqa: S311
    for _ in range(CONVERSATIONS):
        history: list[dict[str, object]] = [{"role": "user", "content": random.choice(BENIGN)}]
        for _ in range(random.randint(1, 4)):
            number = random.randint(0, 3)
            roles: Roles = ("tool",) * number or ("user",)
            contents = [random.choice(BENIGN) for _ in roles]
            made_calls = [call_dict("look", {"x": text}, call="c00000000") for text in contents[:number]]
            spoken = random.choice(("", "Let me see.")) if number else "I think so."
            action: dict[str, object] = {"role": "assistant", "content": spoken}
            history.append(action | ({"tool_calls": made_calls} if made_calls else {}))
            for role, text in zip(roles, contents, strict=True):
                tool = tool_dict(text, name="look", call="c00000000")
                history.append(tool if role == "tool" else {"role": role, "content": text})
            full = made.tokenizer.apply_chat_template(history, tools=None, add_generation_prompt=True)
            plan, values = made.plan(roles), made.values(roles, contents, ["look"] * len(roles))
            if not full.endswith(plan.text(values)):
                return f"{full[-200:]!r} does not end in {plan.text(values)!r}"
            if plan.ids(made.tokenizer, values) != made.tokenizer.encode_joint(plan.text(values)):
                return f"{plan.text(values)!r} is not encoded jointly"
    return ""
