"""Check 13 with whole random conversations, and the certificate with its notes for the reader.

Check 13 compares plans with the template's own rendering of whole random conversations, and refuses differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from orl_core.errors import RenderError
from orl_core.messages import Message, Role, TextBlock, ToolCall, ToolSpec, text_message
from orl_core.render.certify import Certificate, Check, Extent, benign, hard
from orl_core.render.conversation import Dialect, for_template
from orl_core.render.dummy import Dicts, Roles
from orl_core.render.plan import Plans, TailPlan

CONVERSATIONS = 30


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
    return hard("13 equal to the template", detail)


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
