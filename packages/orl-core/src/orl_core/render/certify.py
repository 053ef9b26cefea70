"""The checks that a tokenizer and its chat template must pass before a run trusts them, and their certificate.

A hard check raises RenderError with the law, the text and the ids; a soft one is reported. They run on the renderer's
own parts, at every start, each after those that it depends on. Limits of a template are no failure: they are kept in
the certificate, and the loop keeps within them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from random import Random

from msgspec import Struct, field

from orl_core.errors import RenderError
from orl_core.messages import Message, Role, TextBlock, ToolCall, ToolSpec, text_message
from orl_core.render.controls import Controls
from orl_core.render.conversation import Dialect, for_template
from orl_core.render.dummy import Dicts, Roles
from orl_core.render.independence import (
    Limit,
    TemplateLimits,
    compare,
    compare_results,
    mixed_roles,
    most_calls,
)
from orl_core.render.opening import OpeningRenderer
from orl_core.render.plan import Plans, TailPlan
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
CONVERSATIONS = 30  # random ones, of check 13
ADVERSARIAL_TOKENS = 64  # control strings tried at the slots; check 3 has tried every one of them alone


class Check(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a certificate. `detail` is what was found; a hard check has passed, or it would have raised."""

    check: str
    detail: str
    passed: bool = True


class Certificate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checks in order, the limits of the template, and notes for the reader.

    `user_turns` says whether a user message can follow an action, `calls_per_action` how many calls an action may make
    so that its results can be rendered; None is any number. `system_messages` and `without_tools` say what an opening
    may have.
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    user_turns: bool = True
    calls_per_action: int | None = None
    system_messages: bool = True
    without_tools: bool = True

    @property
    def passed(self) -> bool:
        """Return whether the soft checks passed too; the hard ones have, or there would be no certificate."""
        return all(check.passed for check in self.checks)


class Extent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Successors of an action: the closing before each role that can, how many calls, and why no more.

    `mixed` says whether results and a user message can follow together, `openings` what an opening cannot have.
    """

    closing: Mapping[Role, int]
    calls_per_action: int | None = None
    mixed: bool = False
    openings: TemplateLimits = field(default_factory=TemplateLimits)
    notes: tuple[str, ...] = ()


def before_plans(tokenizer: Tokenizer, controls: Controls) -> list[Check]:
    """Make checks 2, 3 and 5: the vocabulary alone."""
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
        Check(check="2 stops", detail=", ".join(f"{named[stop]} {stop}" for stop in stops)),
        Check(check="3 text is text", detail=f"{len(controls.ids)} control strings, none reachable by plain encoding"),
        Check(check="5 round trip", detail=f"{len(BENIGN)} texts"),
    ]


def plans(plans: Plans, dialect: Dialect) -> tuple[Extent, list[Check]]:
    """Make checks 4, 6 to 10 and 12 of what follows an action."""
    notes: list[str] = []
    plans.find_count()
    most = most_calls(plans, notes)
    limits = compare_results(plans, most)
    roles: tuple[Role, ...] = ("tool",)
    mixed = False
    try:
        plans.transform("user")
        limits = compare(plans, ("user",), several=most != 1) | limits
        roles = ("tool", "user")
        mixed = mixed_roles(plans, most, limits, notes)
    except RenderError as exc:
        notes.append(f"a user message cannot follow an action: {exc}")
    for role in roles:
        _spliced(plans, role, dialect)
        _adversarial(plans, role)
    notes += _notes_on(plans, limits)
    extent = Extent(
        closing={role: plans.plan((role,)).closing for role in roles},
        calls_per_action=most,
        mixed=mixed,
        openings=limits,
        notes=tuple(notes),
    )
    _closed(plans, extent)
    names = {token: text for text, token in plans.controls.ids.items()}
    closing = ", ".join(f"{names[token]} before a {role} message" for role, token in extent.closing.items())
    contents = ", ".join(f"{role} {plans.transform(role).name}" for role in roles)
    history = "the number of calls before only" if plans.counting else "nothing before it"
    return extent, [
        Check(check="4 splice is joint", detail=f"{len(BENIGN)} texts for each role"),
        Check(check="6 plans", detail=f"an action can be followed by: {', '.join(roles)}"),
        Check(check="7 contents", detail=contents),
        Check(
            check="8 independence",
            detail=f"what follows an action depends on {history}, in all combinations that were tried",
        ),
        Check(
            check="9 several calls", detail="as many as there are" if most is None else f"at most {most} in one action"
        ),
        Check(check="10 closing", detail=f"an action is closed by {closing}"),
        Check(check="12 adversarial slots", detail="control strings alone, doubled, cut and at the edges stay text"),
    ]


def _notes_on(plans: Plans, limits: TemplateLimits) -> list[str]:
    """Return what an opening cannot have, and what the template does to an action's text, as notes."""
    if "system" in limits and not plans.shown:
        raise RenderError(
            "`system_prompt_template` needs a system message, which breaks this template: name another file in "
            f"`chat_template`. {limits['system']}"
        )
    texts: dict[Limit, str] = {
        "system": f"an opening cannot have a system message: {limits.get('system')}",
        "moved": "the template moves the text of an action behind its calls; here it stays before them",
        "apart": "the template refuses reasoning and text before a call together; an action keeps its own ids",
        "without_tools": f"an opening needs tools: {limits.get('without_tools')}",
    }
    return [text for limit, text in texts.items() if limit in limits]


def _closed(plans: Plans, extent: Extent) -> None:
    """Make check 10: one closing precedes each role, whatever the number of calls."""
    result: Roles = ("tool",)
    shapes: list[Roles] = [(role,) for role in extent.closing]
    shapes += [result * number for number in range(2, 1 + (extent.calls_per_action or 3))]
    for roles in shapes:
        plan = plans.plan(roles)
        if plan.closing != extent.closing[roles[0]]:
            raise RenderError(f"check 10: {', '.join(roles)} close the action otherwise than {roles[0]} alone")
        lead = "\0".join(part for part in plan.parts[: plan.parts.index(0)] if isinstance(part, str))
        stops = [text for text in plans.controls.sequence(lead) if text in plans.stops]
        if len(stops) != 1:
            raise RenderError(f"check 10: {len(stops)} stop tokens between an action and the next {roles[0]}")


def _spliced(plans: Plans, role: Role, dialect: Dialect) -> None:
    """Make check 4: a plan's ids equal the joint encoding of its text."""
    roles: Roles = (role,)
    calls = plans.call_ids([""], ["look"], dialect)
    for plan in (plans.plan(roles), *([plans.plan(roles, 1)] if plans.counting else [])):
        for text in benign(plans.controls):
            values = plans.values(roles, (text,), ("look",), calls)
            ours, joint = plan.ids(plans.tokenizer, values), plans.tokenizer.encode_joint(plan.text(values))
            if ours != joint:
                raise RenderError(f"check 4: {role} content {text!r} becomes {ours}, the joint encoding is {joint}")


def benign(controls: Controls) -> list[str]:
    """Return the benign texts without a control string; in Gemma 3 the tags of HTML are control strings."""
    return [text for text in BENIGN if not controls.sequence(text)]


def _adversarial(plans: Plans, role: Role) -> None:
    """Make check 12: no content, name or call id changes a plan's control ids."""
    roles: Roles = (role,)
    plan, ids = plans.plan(roles), plans.controls.id_set
    blank = [token for token in plan.ids(plans.tokenizer, plans.values(roles, "x", "x", "x")) if token in ids]
    named = any(part % 3 for part in plan.parts if isinstance(part, int))
    for text in attacks(plans.controls):
        name = text if named else "look"
        tail_ids = plan.ids(plans.tokenizer, plans.values(roles, (text,), (name,), (name,)))
        if [token for token in tail_ids if token in ids] != blank:
            raise RenderError(f"check 12, law L4: {role} content {text!r} brings control ids: {tail_ids}")


def attacks(controls: Controls) -> list[str]:
    """Return contents that try to become control ids: alone, doubled, cut at either end, at the edges of a slot."""
    return [
        attack
        for text in list(controls.ids)[:ADVERSARIAL_TOKENS]
        for attack in (text, text * 2, text[:-1], text[1:], f"{text}\n", f" {text}", f"{text[:-1]}{text}", text[:1])
    ]


def openings(opening: OpeningRenderer, controls: Controls, encode_joint: Callable[[str], list[int]]) -> list[Check]:
    """Make checks 4, 11 and 12 of the opening: joint ids, tools that the model sees, and text that stays text."""
    user = text_message("user", "Hi.")
    if "Zqtool" not in opening.text([user], [ToolSpec(name="Zqtool")], str):
        drops = "drops the system message, which shows the tools: name another file in `chat_template`"
        lacks = "does not show the tools: set `system_prompt_template`"
        raise RenderError(f"check 11: the chat template {lacks if opening.system is None else drops}")
    plain = opening.text([user], [ToolSpec(name="look")], str)
    if opening.ids([user], [ToolSpec(name="look")]) != (joint := encode_joint(plain)):
        raise RenderError(f"check 4: the opening {plain!r} is not encoded jointly, which gives {joint}")
    text = " ".join(controls.ids)
    schema = {"type": "object", "properties": {"where": {"type": "string", "description": text}}}
    tool = ToolSpec(name="look", description=text, parameters=schema)
    opening.ids([text_message("system", text), text_message("user", text)], [tool])
    return [
        Check(check="11 tools", detail="the opening shows the tools"),
        Check(check="12 adversarial openings", detail="control strings in system, user and tool texts stay text"),
    ]


def certificate(checks: Sequence[Check], extent: Extent, plans: Plans, opened: Mapping[Role, bool]) -> Certificate:
    """Return the certificate of these checks. `opened`: the roles after which the prompt opens the reasoning."""
    tools = plans.tools if "without_tools" in extent.openings else ()
    before, _, after = plans.apply([{"role": "user", "content": "Zqu"}], tools).partition("Zqu")
    notes = [f"an action begins after {after!r}, {_side(opened['user'])} reasoning"]
    if opened["tool"] != opened["user"]:
        notes.append(f"after a result it begins {_side(opened['tool'])} reasoning")
    if system := [line for line in plans.controls.split(before)[::2] if len(line.split()) > 1]:
        notes.append(f"without a system message the template supplies its own: {' '.join(system)[:200]!r}")
    return Certificate(
        checks=tuple(checks),
        notes=(*notes, *extent.notes),
        user_turns="user" in extent.closing,
        calls_per_action=extent.calls_per_action,
        system_messages="system" not in extent.openings,
        without_tools="without_tools" not in extent.openings,
    )


def _side(opened: bool) -> str:
    return "inside" if opened else "outside"


def whole_conversations(plans: Plans, extent: Extent, dialect: Dialect) -> Check:
    """Check 13: random conversations."""
    if unequal := unlike_template(plans, extent, dialect):
        raise RenderError(f"check 13: a plan is not what the template prints for a whole conversation: {unequal}")
    detail = f"{CONVERSATIONS} random conversations end as the template's own full rendering does"
    return Check(check="13 equal to the template", detail=detail)


def unlike_template(plans: Plans, extent: Extent, dialect: Dialect) -> str:
    """Return how a random conversation differs from its plan; empty if none does.

    The full rendering is the template's own. It may rewrite earlier messages, never the end.
    """
    random, texts = Random(0), benign(plans.controls)  # noqa: S311
    for _ in range(CONVERSATIONS):
        history = [text_message("user", random.choice(texts))]
        if "system" not in extent.openings and random.random() < 0.5:
            history.insert(0, text_message("system", random.choice(texts)))
        tools = plans.tools if "without_tools" in extent.openings or random.random() < 0.8 else ()
        calls_before = 0
        for _ in range(random.randint(1, 4)):
            roles = _shape(random, extent)
            contents = [random.choice(("", random.choice(texts), random.choice(texts))) for _ in roles]
            names = ["look"] * len(roles)
            ids = plans.call_ids([""] * len(roles), names, dialect, calls_before)
            spoken = random.choice(("", "Let me see.")) if roles[0] == "tool" else "I think so."
            thought = random.choice(("", "Hm.\n\nSo it is."))
            if "moved" in extent.openings or ("apart" in extent.openings and thought and roles[0] == "tool"):
                spoken = ""
            history += _round(spoken, thought, roles, contents)
            plan, values = plans.plan(roles, calls_before), plans.values(roles, contents, names, ids)
            calls_before += roles.count("tool")
            if unequal := _unequal(plans, for_template(history, str, dialect), tools, plan, values):
                return unequal
    return ""


def _shape(random: Random, extent: Extent) -> Roles:
    """Return the roles of what answers an action: results, a user message, or both if they can follow together."""
    number = random.randint(0 if "user" in extent.closing else 1, extent.calls_per_action or 5)
    both = number > 0 and "user" in extent.closing and extent.mixed and random.random() < 0.2
    results: Roles = ("tool",) * number
    return (*results, "user") if both or not number else results


def _round(spoken: str, thought: str, roles: Sequence[Role], contents: Sequence[str]) -> list[Message]:
    """Return an action and the messages that answer it."""
    answers = [text_message(role, text, name="look") for role, text in zip(roles, contents, strict=True)]
    calls = tuple(
        ToolCall(name="look", arguments={"x": text})
        for role, text in zip(roles, contents, strict=True)
        if role == "tool"
    )
    action = Message(role="assistant", content=(TextBlock(text=spoken),), reasoning=thought, calls=calls)
    return [action, *answers]


def _unequal(plans: Plans, history: Dicts, tools: Sequence[ToolSpec], plan: TailPlan, values: Sequence[str]) -> str:
    try:
        full = plans.apply(history, tools)
    except RenderError as exc:
        return str(exc)
    text = plan.text(values)
    if not full.endswith(text):
        return f"{full[-200:]!r} does not end in {text!r}"
    joint = plans.tokenizer.encode_joint(text)
    return "" if plan.ids(plans.tokenizer, values) == joint else f"{text!r} is not encoded jointly"
