"""The rest of the certificate: random conversations, the soft check, and what a reader should know about the template.

Check 13 compares plans with the template's own rendering of whole conversations, and refuses what differs. The
parser's check refuses calls that are read as something else; where the template writes no call at all, it is reported
and stops nothing, because a `system_prompt_template` tells the model its format.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from orl_core.errors import RenderError, boundary
from orl_core.render.call_check import CallCheck
from orl_core.render.calls import CallReader, reasoning_opened
from orl_core.render.certify import Certificate, Check, Extent, benign
from orl_core.render.conversation import Dialect, call_dict, tool_dict
from orl_core.render.dummy import DUMMY_TOOL
from orl_core.tools.format import for_chat_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orl_core.messages import Role
    from orl_core.render.dummy import Roles
    from orl_core.render.plan import Plans, TailPlan
    from orl_core.tools import ToolFormat

CONVERSATIONS = 30


def report(checks: Sequence[Check], extent: Extent, made: Plans, dialect: Dialect, calls: CallReader) -> Certificate:
    """Return the certificate: the hard checks that have passed, check 13, the soft one, and notes.

    Raises:
        RenderError: check 13 fails.
    """
    if unequal := unlike_template(made, extent, dialect):
        raise RenderError(f"check 13: a plan is not what the template prints for a whole conversation: {unequal}")
    equality = Check(
        check="13 equal to the template",
        passed=True,
        detail=f"{CONVERSATIONS} random conversations end as the template's own full rendering does",
    )
    return Certificate(
        checks=(*checks, equality, CallCheck(made).check(dialect, calls)),
        notes=(*_notes(made, extent, calls.format), *extent.notes),
        user_turns="user" in extent.closing,
        calls_per_action=extent.calls_per_action,
        system_messages=not extent.openings.system,
        without_tools=not extent.openings.without_tools,
    )


def _notes(made: Plans, extent: Extent, tool_format: ToolFormat) -> list[str]:
    hello = [{"role": "user", "content": "Zqu"}]
    tools = _shown(made) if extent.openings.without_tools else None
    prompt = made.tokenizer.apply_chat_template(hello, tools=tools, add_generation_prompt=True)
    before, _, after = prompt.partition("Zqu")
    system = [line for line in made.controls.split(before)[::2] if len(line.split()) > 1]
    opened = reasoning_opened(made, tuple(extent.closing), tool_format)
    notes = [f"an action begins after {after!r}, {_side(opened['user'])} reasoning"]
    if opened["tool"] != opened["user"]:
        notes.append(f"after a result it begins {_side(opened['tool'])} reasoning")
    if system:
        notes.append(f"without a system message the template supplies its own: {' '.join(system)[:200]!r}")
    return notes


def _side(opened: bool) -> str:
    return "inside" if opened else "outside"


def unlike_template(made: Plans, extent: Extent, dialect: Dialect) -> str:
    """Check 13: the first random conversation whose full rendering does not end in the plan's text; empty if none.

    The full rendering is the template's own, of the whole history: it may rewrite what came before, never the end.
    """
    random, texts = Random(0), benign(made.controls)  # noqa: S311
    for _ in range(CONVERSATIONS):
        history: list[dict[str, Any]] = [{"role": "user", "content": random.choice(texts)}]
        if not extent.openings.system and random.random() < 0.5:
            history.insert(0, {"role": "system", "content": random.choice(texts)})
        tools = _shown(made) if extent.openings.without_tools or random.random() < 0.8 else None
        played = 0
        for _ in range(random.randint(1, 4)):
            roles = _shape(random, extent)
            said = [random.choice(("", random.choice(texts), random.choice(texts))) for _ in roles]
            ids = [dialect.call_id(played + place, "look") for place in range(len(said))]
            spoken = random.choice(("", "Let me see.")) if roles[0] == "tool" else "I think so."
            thought = random.choice(("", "Hm.\n\nSo it is."))
            if extent.openings.moved or (extent.openings.apart and thought and roles[0] == "tool"):
                spoken = ""
            history += _played(spoken, thought, roles, said, ids, dialect)
            plan, values = made.plan(roles, played), made.values(roles, said, ["look"] * len(said), ids)
            played += roles.count("tool")
            if unequal := _unequal(made, history, tools, plan, values):
                return unequal
    return ""


def _shown(made: Plans) -> list[dict[str, Any]] | None:
    return for_chat_template([DUMMY_TOOL]) if made.shown else None


def _shape(random: Random, extent: Extent) -> Roles:
    """Return the roles of what answers an action: results, a user message, or both where they can follow together."""
    number = random.randint(0 if "user" in extent.closing else 1, extent.calls_per_action or 5)
    both = number > 0 and "user" in extent.closing and extent.mixed and random.random() < 0.2
    results: Roles = ("tool",) * number
    return (*results, "user") if both or not number else results


def _played(
    spoken: str, thought: str, roles: Sequence[Role], said: Sequence[str], ids: Sequence[str], dialect: Dialect
) -> list[dict[str, Any]]:
    """Return an action and what answers it, as a template reads them."""
    action: dict[str, Any] = {"role": "assistant", "content": spoken}
    if thought:
        action["reasoning_content"] = thought
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for role, text, name in zip(roles, said, ids, strict=True):
        if role == "tool":
            calls.append(call_dict("look", {"x": text}, call=name, as_text=dialect.arguments_as_text))
            results.append(tool_dict(text, name="look", call=name))
        else:
            results.append({"role": role, "content": text})
    if calls:
        action["tool_calls"] = calls
    return [action, *results]


def _unequal(made: Plans, history: Sequence[dict[str, Any]], tools: Any, plan: TailPlan, values: Sequence[str]) -> str:
    try:
        with boundary(RenderError, "applying the chat template to a conversation"):
            full = made.tokenizer.apply_chat_template(history, tools=tools, add_generation_prompt=True)
    except RenderError as exc:
        return str(exc)
    text = plan.text(values)
    if not full.endswith(text):
        return f"{full[-200:]!r} does not end in {text!r}"
    joint = made.tokenizer.encode_joint(text)
    return "" if plan.ids(made.tokenizer, values) == joint else f"{text!r} is not encoded jointly"
