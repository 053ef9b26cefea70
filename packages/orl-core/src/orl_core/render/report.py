"""The rest of the certificate: the soft checks, and what a reader should know about the template.

A soft check that fails is reported and stops nothing: the plans are right by the hard ones, and the template may be
wrong about itself.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from orl_core.errors import RenderError, boundary
from orl_core.render.calls import DUMMY_CALL, CallReader, reasoning_opened, render_call
from orl_core.render.certify import BENIGN, Certificate, Check, Extent
from orl_core.render.conversation import Dialect, call_dict, tool_dict
from orl_core.render.dummy import DUMMY_TOOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orl_core.messages import Role
    from orl_core.render.dummy import Roles
    from orl_core.render.plan import Plans
    from orl_core.tools import ToolFormat

CONVERSATIONS = 30


def report(checks: Sequence[Check], extent: Extent, made: Plans, dialect: Dialect, calls: CallReader) -> Certificate:
    """The certificate: the hard checks that have passed, the soft ones, and notes."""
    unequal = unlike_template(made, extent, dialect)
    equality = Check(
        check="13 equal to the template",
        passed=not unequal,
        detail=unequal or f"{CONVERSATIONS} random conversations end as the template's own full rendering does",
    )
    return Certificate(
        checks=(*checks, equality, _parses(made, dialect, calls)),
        notes=(*_notes(made, extent, calls.format), *extent.notes),
        user_turns="user" in extent.closing,
        calls_per_action=extent.calls_per_action,
    )


def _notes(made: Plans, extent: Extent, tool_format: ToolFormat) -> list[str]:
    hello = [{"role": "user", "content": "Zqu"}]
    prompt = made.tokenizer.apply_chat_template(hello, tools=None, add_generation_prompt=True)
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


def _parses(made: Plans, dialect: Dialect, calls: CallReader) -> Check:
    """Whether the parser reads back a call that the template rendered. A template that ignores calls fails this."""
    rendered, opened = render_call(made, dialect, calls.format, tools=True)
    found = calls.read(made.tokenizer.encode_joint(rendered), [DUMMY_TOOL], reasoning_opened=opened)[0].calls
    passed = found == (DUMMY_CALL,)
    return Check(check="parse after render", passed=passed, detail="equal" if passed else f"{rendered!r} gives {found}")


def unlike_template(made: Plans, extent: Extent, dialect: Dialect) -> str:
    """Check 13: the first random conversation whose full rendering does not end in the plan's text; empty if none.

    The full rendering is the template's own, of the whole history: it may rewrite what came before, never the end.
    """
    random = Random(0)  # noqa: S311
    for _ in range(CONVERSATIONS):
        history: list[dict[str, Any]] = [{"role": "user", "content": random.choice(BENIGN)}]
        played = 0
        for _ in range(random.randint(1, 4)):
            number = random.randint(0 if "user" in extent.closing else 1, extent.calls_per_action or 3)
            said = [random.choice(BENIGN) for _ in range(number or 1)]
            roles: Roles = ("tool",) * number or ("user",)
            ids = [dialect.call_id(played + place, "look") for place in range(len(said))]
            spoken = random.choice(("", "Let me see.")) if number else "I think so."
            history += _played(spoken, roles, said, ids, dialect)
            plan, values = made.plan(roles, played), made.values(roles, said, ["look"] * len(said), ids)
            played += number
            if unequal := _unequal(made, history, plan.text(values), plan.ids(made.tokenizer, values)):
                return unequal
    return ""


def _played(
    spoken: str, roles: Sequence[Role], said: Sequence[str], ids: Sequence[str], dialect: Dialect
) -> list[dict[str, Any]]:
    """An action and what answers it, as a template reads them."""
    action: dict[str, Any] = {"role": "assistant", "content": spoken}
    if roles[0] != "tool":
        return [action, *({"role": role, "content": text} for role, text in zip(roles, said, strict=True))]
    pairs = list(zip(said, ids, strict=True))
    as_text = dialect.arguments_as_text
    action["tool_calls"] = [call_dict("look", {"x": text}, call=name, as_text=as_text) for text, name in pairs]
    return [action, *(tool_dict(text, name="look", call=name) for text, name in pairs)]


def _unequal(made: Plans, history: Sequence[dict[str, Any]], text: str, ids: Sequence[int]) -> str:
    try:
        with boundary(RenderError, "applying the chat template to a conversation"):
            full = made.tokenizer.apply_chat_template(history, tools=None, add_generation_prompt=True)
    except RenderError as exc:
        return str(exc)
    if not full.endswith(text):
        return f"{full[-200:]!r} does not end in {text!r}"
    return "" if list(ids) == made.tokenizer.encode_joint(text) else f"{text!r} is not encoded jointly"
