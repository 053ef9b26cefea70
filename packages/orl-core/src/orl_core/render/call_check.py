"""The format of a run's calls, and the calls that a template or a system prompt writes, read back without a loss.

A run has the chat template's own format, or the one that a `system_prompt_template` teaches. A model that is taught
another format still frames reasoning and text in its own.

Each case is an action, rendered as a part of the history and read by a parser. A case that the template cannot express
(it raises, or leaves a part out) is reported. A case that is read as something else is refused: the model learns from
such renderings, and its calls would be lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from orl_core.errors import RenderError
from orl_core.messages import Action, Message, TextBlock, ToolCall, ToolSpec
from orl_core.render.calls import CallReader, opens
from orl_core.render.certify import Check
from orl_core.render.controls import GUARDS, Controls
from orl_core.render.conversation import Dialect, for_template
from orl_core.render.dummy import HELLO, KINDS
from orl_core.render.plan import Plans
from orl_core.text import check_system_prompt, leaves_in, map_strings
from orl_core.tools import TOOL_FORMATS, ToolFormat, parse, render_call, taught_format, wire_format
from orl_core.tools.typed import schema_of


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action to render. `shows` are words that the rendering holds where the template can express the case."""

    name: str
    calls: tuple[ToolCall, ...]
    text: str = ""
    reasoning: str = ""
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
    """Return tools with schemas of the case's arguments."""
    return [ToolSpec(name=call.name, description="Look.", parameters=schema_of(call.arguments)) for call in case.calls]


class Rendering(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case as the template writes it, without generation prompt and closing, and the prompt that it follows."""

    text: str
    prompt: str

    @property
    def plain(self) -> str:
        """Return the text without the guards that break control strings in the case's own strings."""
        return self.text.replace(GUARDS[0], "")


class CallCheck:
    """Renders the cases through one template, each once for each way to write arguments."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._known: dict[tuple[str, Dialect], Rendering | str] = {}

    def dialect(self, tool_format: ToolFormat) -> Dialect:
        """Return how this template wants calls: arguments as an object or as JSON text, the one that is read back.

        Kimi K2's ids say the call's name, which its format prints nowhere else.
        """
        planned, named = self._plans.form(("tool",)).as_text, "kimi" in tool_format
        own = named and self._plans.own_ids
        choices = [Dialect(arguments_as_text=text, named_ids=named, own_ids=own) for text in (planned, not planned)]
        return min(choices, key=lambda choice: len(self._misread(tool_format, choice)))

    def detect_format(self) -> ToolFormat:
        """Return the first format that reads back all that the template writes."""
        near = ""
        for tool_format in TOOL_FORMATS:
            misread = self._misread(tool_format, self.dialect(tool_format))
            if not misread:
                return tool_format
            if PLAIN.name not in misread and not near:
                name, read = next(iter(misread.items()))
                near = f"`{tool_format}` comes near, but reads {name} as {read}"
        rendering = self._rendering(PLAIN, self.dialect(TOOL_FORMATS[0]))
        if isinstance(rendering, str):
            raise RenderError(unsupported("", self._plans.why_no_calls or rendering))
        raise RenderError(unsupported(rendering.plain, "", near))

    def check(self, dialect: Dialect, calls: CallReader) -> Check:
        """Check that the parser reads back what the template writes, in ids, and the call ids that results show.

        It fails, and stops nothing, where the template writes no call at all.
        """
        missing: list[str] = []
        cases = (*CASES, spelling(self._plans.controls, calls.wire.delimiters))
        for case in cases:
            rendering = self._rendering(case, dialect)
            if isinstance(rendering, str):
                missing.append(f"{case.name} ({rendering})")
                continue
            ids = self._plans.controls.encode(rendering.text, GUARDS[0])
            opened = _opened(rendering, calls.format)
            action = calls.read(ids, tools_of(case), reasoning_opened=opened)[0]
            if wrong := difference(case, action, rendering):
                raise RenderError(
                    f"parse after render: the chat template writes {case.name} as {rendering.plain!r}, which the "
                    f"`{calls.format}` parser reads as {wrong}: template and `tool_format` do not belong together"
                )
            read = [call.id for call in action.calls]
            shown = self._plans.call_ids([""] * len(read), [call.name for call in case.calls], dialect)
            if any(read) and read != shown and len(KINDS) - 1 in self._plans.plan(("tool",)).parts:
                raise RenderError(f"parse after render: {case.name} has the ids {read}, its results show {shown}")
        detail = f"{len(cases) - len(missing)} kinds of calls are read back"
        detail += f"; the template cannot express {', '.join(missing)}" if missing else ""
        passed = isinstance(self._rendering(PLAIN, dialect), Rendering)
        return Check(check="parse after render", passed=passed, detail=detail)

    def write(self, case: Case, dialect: Dialect) -> Rendering:
        """Return the case as the template writes it; refuse one that it cannot express."""
        rendering = self._rendered(case, dialect, tools=self._plans.shown)
        if isinstance(rendering, str):
            raise RenderError(f"the chat template cannot express the action {case.text!r} {[*case.calls]}: {rendering}")
        return rendering

    def _misread(self, tool_format: ToolFormat, dialect: Dialect) -> dict[str, str]:
        """Return the cases that the format's parser misreads, and what it reads; the template must express one call."""
        plain = self._read(PLAIN, tool_format, dialect)
        if plain != "":
            return {case.name: plain or "nothing" for case in CASES}
        misread = {case.name: self._read(case, tool_format, dialect) for case in CASES}
        return {name: read for name, read in misread.items() if read}

    def _read(self, case: Case, tool_format: ToolFormat, dialect: Dialect) -> str | None:
        """Return how the format's parser reads the case: empty if it is right, None if it is not expressed."""
        rendering = self._rendering(case, dialect)
        if isinstance(rendering, str):
            return None
        opened = _opened(rendering, tool_format)
        action = parse(rendering.plain, tool_format, tools=tools_of(case), reasoning_opened=opened)
        return self._strangers(case, rendering, tool_format) or difference(case, action, rendering)

    def _strangers(self, case: Case, rendering: Rendering, tool_format: ToolFormat) -> str:
        """Return the control strings of a call that the format does not know, and would read as text."""
        last = max((rendering.text.rfind(word) for word in case.shows), default=0)
        written = set(self._plans.controls.sequence(rendering.text[max(last, 0) :]))
        return ", ".join(sorted(written.difference(wire_format(tool_format).delimiters)))

    def _rendering(self, case: Case, dialect: Dialect) -> Rendering | str:
        """Return the case as the template writes it, or why it cannot express it."""
        key = case.name, dialect
        if key not in self._known:
            shown = self._plans.shown
            rendering = self._rendered(case, dialect, tools=shown)
            if isinstance(rendering, str) and isinstance(
                other := self._rendered(case, dialect, tools=not shown), Rendering
            ):
                rendering = other
            self._known[key] = rendering
        return self._known[key]

    def _rendered(self, case: Case, dialect: Dialect, *, tools: bool) -> Rendering | str:
        shown = tools_of(case) if tools else ()
        messages = self._messages(case, dialect)
        try:
            whole, prompt = self._plans.apply(messages, shown, prompt=False), self._plans.apply(HELLO, shown)
        except RenderError as exc:
            return str(exc)
        rendering = self._behind(whole, prompt)
        if lost := [word for word in case.shows if word not in rendering.plain]:
            return f"it does not print {', '.join(lost)}"
        if rendering.text.count(GUARDS[0]) != sum(text.count(GUARDS[0]) for _, text in leaves_in(messages)):
            return "it changes control strings in arguments"
        return self._closed(rendering, case)

    def _messages(self, case: Case, dialect: Dialect) -> list[dict[str, Any]]:
        """Return the case as a template reads it, every string in it guarded."""
        content = (TextBlock(text=case.text),)
        message = Message(role="assistant", content=content, reasoning=case.reasoning, calls=case.calls)
        (action,) = for_template([message], lambda text: self._plans.controls.guard(text, GUARDS[0]), dialect)
        if not case.text:
            action["content"] = self._plans.form(("tool",)).empty
        return [*map(dict, HELLO), action]

    def _behind(self, whole: str, prompt: str) -> Rendering:
        """Return the text behind the prompt, or behind the part that both share."""
        if whole.startswith(prompt):
            return Rendering(text=whole.removeprefix(prompt), prompt=prompt)
        parts, shared = self._plans.controls.split(whole), self._plans.controls.split(prompt)
        pairs = enumerate(zip(parts, shared, strict=False))
        same = next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(parts), len(shared)))
        if same % 2 or same >= len(shared):
            return Rendering(text="".join(parts[same:]), prompt="")
        ends = (place for place, (a, b) in enumerate(zip(parts[same], shared[same], strict=False)) if a != b)
        alike = next(ends, min(len(parts[same]), len(shared[same])))
        return Rendering(text="".join(parts[same:])[alike:], prompt="")

    def _closed(self, rendering: Rendering, case: Case) -> Rendering | str:
        """Return the rendering up to the closing, or why it is not one action."""
        ids, stop_ids = self._plans.controls.ids, self._plans.tokenizer.stop_ids
        last = max((rendering.plain.rfind(word) for word in case.shows), default=0)
        text, length = "", 0
        for part in self._plans.controls.split(rendering.text):
            stops = part in ids and (ids[part] in stop_ids or (part in self._plans.stops and length > last))
            if stops and length > last:
                break
            if stops:
                return "it writes text and calls as several actions"
            text, length = text + part, length + len(part.replace(GUARDS[0], ""))
        return structs.replace(rendering, text=text)


def _opened(rendering: Rendering, tool_format: ToolFormat) -> bool:
    """Return whether the rendering begins inside reasoning: some templates print only its end before a past action."""
    return opens(rendering.prompt, tool_format) or rendering.text.lstrip().startswith(
        wire_format(tool_format).thinking[1]
    )


def spelling(controls: Controls, delimiters: Sequence[str]) -> Case:
    """Return a string that spells the format's delimiters that are ids: text from outside is text (law L4)."""
    held = " ".join(text for text in delimiters if text in controls.ids)
    return one_call("control strings in arguments", spelled=f"a {held} b", cut=held[:-1])


def difference(case: Case, action: Action, rendering: Rendering) -> str:
    """Return what the action says in place of the case; empty if it says the same, types included.

    If the rendering does not begin behind a prompt, the rest of one may precede the text.
    """
    calls = [[call.name, call.arguments] for call in action.calls if isinstance(call, ToolCall)]
    if len(calls) == len(action.calls) and _exact(calls) == _exact(
        [[call.name, call.arguments] for call in case.calls]
    ):
        text = action.text or action.reasoning  # gpt-oss takes text before a call for reasoning
        alike = text == case.text if rendering.prompt else case.text in text
        return "" if alike else f"the text {text!r}"
    return f"{action.calls}"


def unsupported(rendered: str, why_no_calls: str, near: str = "") -> str:
    """Return why a call that the template renders in this way is refused.

    `why_no_calls` as in `Plans`; `near` says which parser comes near, and which case it misreads.
    """
    teach = "teach a format with `system_prompt_template`; `tool_format` names it"
    if not rendered.strip():
        return (
            "the chat template is not made for tools: it prints no tool call that can be followed "
            f"({why_no_calls}). Use a template that does, or {teach}"
        )
    return (
        f"the chat template renders tool calls as {rendered!r}, which none of the parsers ({', '.join(TOOL_FORMATS)}) "
        f"reads back with its types. {near}{near and '. '}Instead, {teach}"
    )


def _exact(value: Any) -> str:
    """Return a text that is equal for equal values of equal types: 1, 1.0 and True differ, orders of keys do not."""
    return json.dumps(value, sort_keys=True)


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
    if calls.format != "hermes":
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
