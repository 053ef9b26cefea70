"""The format of calls of a run: the chat template's own, or the one that a `system_prompt_template` teaches.

A model that is taught another format still frames reasoning and text in its own. Its calls are certified by writing
them as the system prompt does, and reading them back in ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct, structs

from orl_core.errors import RenderError
from orl_core.render.call_check import CASES, CallCheck, Case, Rendering, difference, spelling, tools_of
from orl_core.render.calls import CallReader
from orl_core.render.certify import Check
from orl_core.render.controls import GUARDS, Controls
from orl_core.text import check_system_prompt, map_strings
from orl_core.tools import ToolFormat, delimiters, render_call, taught_format

WRITTEN = frozenset({"hermes"})  # the taught formats whose calls are written and read back for the certificate


class CallFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name the format of calls, and of reasoning and text (`frame`). `why` says why they differ."""

    calls: ToolFormat
    frame: ToolFormat
    why: str = ""

    @property
    def is_taught(self) -> bool:
        """Return whether the calls are not those that the chat template writes."""
        return bool(self.why)


def choose_format(
    written: CallCheck, tool_format: ToolFormat | Literal["auto"], system_prompt_template: str | None
) -> CallFormat:
    """Return the stated format, or else the one that the system prompt teaches, or else the chat template's own."""
    stated = None if tool_format == "auto" else tool_format
    if stated is not None:
        delimiters(stated)
    if system_prompt_template is None:
        calls = stated or written.detect_format()
        return CallFormat(calls=calls, frame=calls)
    try:
        check_system_prompt(system_prompt_template)
    except ValueError as exc:
        raise RenderError(str(exc)) from exc
    taught = taught_format(system_prompt_template)
    try:
        own: ToolFormat | None = written.detect_format()
    except RenderError:
        own = None
    calls = stated or taught or own or written.detect_format()
    if calls == own:
        return CallFormat(calls=calls, frame=calls)
    by = "`system_prompt_template` teaches it" if calls == taught else "`tool_format` states it"
    has = f"the chat template's own is `{own}`" if own else "no parser reads the chat template's own"
    return CallFormat(calls=calls, frame=own or calls, why=f"calls are read as `{calls}`: {by}; {has}")


def check_taught(controls: Controls, calls: CallReader) -> Check:
    """Check that calls written as a system prompt teaches them are read back, in ids.

    It fails, and stops nothing, for a format that orl does not write.
    """
    name = "taught calls"
    if calls.format not in WRITTEN:
        return Check(check=name, passed=False, detail=f"orl does not write `{calls.format}`, so that none was tried")
    cases = (*CASES, spelling(controls, calls.wire.delimiters))
    for case in cases:
        text = action_text(case, calls.format, lambda text: controls.guard(text, GUARDS[0]))
        ids = controls.encode(text, GUARDS[0])
        action = calls.read(ids, tools_of(case), reasoning_opened=False)[0]
        if wrong := difference(case, action, Rendering(text=text, prompt=text)):
            raise RenderError(
                f"{name}: the `{calls.format}` parser reads {case.name}, {text!r}, as {wrong}: leave "
                "`system_prompt_template` out, so that the chat template shows the tools"
            )
    return Check(check=name, passed=True, detail=f"{len(cases)} kinds of calls are read back")


def action_text(case: Case, tool_format: ToolFormat, guard: Callable[[str], str]) -> str:
    """Return the text and the calls of an action in the format of the calls, `guard` applied to each string."""
    calls = [
        structs.replace(call, name=guard(call.name), arguments=map_strings(call.arguments, guard))
        for call in case.calls
    ]
    return "\n".join([*([guard(case.text)] if case.text else []), *(render_call(call, tool_format) for call in calls)])
