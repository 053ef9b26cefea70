"""Plans: what follows an action, worked out once for each shape of new messages (law L5).

A shape is the roles of the new messages. Its plan comes from one render of a short dummy conversation with sentinels in
the last action's arguments and in every new content and name: the tail is what follows the first stop string after the
last argument sentinel, and a slot is where a new sentinel stands. A difference of two renders would fail on templates
that look at the last message, Qwen3's among them. Control ids come from the plan alone; what fills a slot goes through
the plain encoder together with the constant text beside it, so that merges at the edges are the tokenizer's own.

The module knows templates only by what they print. A template that the dummies cannot reach is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from orl_core.errors import RenderError, boundary
from orl_core.messages import Role, ToolSpec
from orl_core.render.conversation import call_dict, tool_dict
from orl_core.tools.format import for_chat_template

if TYPE_CHECKING:
    from orl_core.render.controls import Controls
    from orl_core.render.tokenizer import Tokenizer

Roles = tuple[Role, ...]
Dicts = Sequence[Mapping[str, Any]]

TRANSFORMS: Mapping[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "stripped": str.strip,
    "left-stripped": str.lstrip,
    "right-stripped": str.rstrip,
    "a JSON string": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],  # its quotes are constant text
}
PROBES = (
    *("", " ", "a", " a", "a ", "\na\n", "\t a\u00a0 ", "a\r\nb", "a\n\n\nb", "é 漢 😀", "<b>&amp;</b>"),
    *('"q"', "{}", '{"a": 1}', "[1, 2]", "\\n \\", "True", "null", "123", "Zqa", "{{ x }} {% y %}"),
)
SHAPES = 256  # plans kept; a model that writes calls without end makes shapes without end
DUMMY_TOOL = ToolSpec(name="look", description="Look.")
_SLOT = re.compile(r"Zq([cn])(\d{6})")


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ids that follow an action, with slots. `fixed` and `pieces` alternate, `fixed` first and last.

    A part of a piece is constant text or the index of a value: 2·i is the content of new message i, 2·i+1 its name.
    `parts` is the same tail as text.
    """

    closing: int
    parts: tuple[str | int, ...]
    fixed: tuple[tuple[int, ...], ...]
    pieces: tuple[tuple[str | int, ...], ...]

    def text(self, values: Sequence[str]) -> str:
        """The tail as the template would print it."""
        return _fill(self.parts, values)

    def ids(self, tokenizer: Tokenizer, values: Sequence[str]) -> list[int]:
        """The tail as ids, the closing first. One batch through the plain encoder, nothing else."""
        ids = list(self.fixed[0])
        encoded = tokenizer.encode([_fill(piece, values) for piece in self.pieces])
        for piece, fixed in zip(encoded, self.fixed[1:], strict=True):
            ids.extend(piece)
            ids.extend(fixed)
        return ids


def _fill(parts: tuple[str | int, ...], values: Sequence[str]) -> str:
    return "".join([part if isinstance(part, str) else values[part] for part in parts])


class Form(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the dummy's action looks: with calls or with text, tools given or not, and its content beside calls."""

    calls: bool
    tools: bool
    empty: str | None


class Plans:
    """The plans and content transforms of one tokenizer and template, each made when it is first asked for."""

    def __init__(self, tokenizer: Tokenizer, controls: Controls) -> None:
        self.tokenizer = tokenizer
        self.controls = controls
        self.stops = tuple(text for text, token in controls.ids.items() if token in tokenizer.stop_ids)
        self._stop = re.compile("|".join(map(re.escape, self.stops)) or r"(?!)")
        self._plans: dict[Roles, tuple[Plan, Form]] = {}
        self._transforms: dict[Role, str] = {}

    def plan(self, roles: Roles) -> Plan:
        """The plan for new messages of these roles.

        Raises:
            RenderError: the template cannot express them, or prints something that a plan cannot hold.
        """
        return self._planned(roles)[0]

    def values(self, roles: Roles, contents: Sequence[str], names: Sequence[str]) -> list[str]:
        """What fills the slots: contents as the template would change them, each followed by its name."""
        values: list[str] = []
        for role, content, name in zip(roles, contents, names, strict=True):
            values.append(TRANSFORMS[self.transform(role)](content))
            values.append(name)
        return values

    def transform(self, role: Role) -> str:
        """What the template does to a content of this role: a key of TRANSFORMS, found by probing.

        Raises:
            RenderError: it does something else.
        """
        known = self._transforms.get(role)
        if known is None:
            known = self._transforms[role] = self._probed(role)
        return known

    def tail(self, roles: Roles, *, before: Dicts = (), tools: bool | None = None, form: Form | None = None) -> str:
        """The tail as text, with its sentinels, of a dummy conversation that begins with `before`.

        `tools` says whether the template is given tools; None and no `form` mean: as the plan was made.

        Raises:
            RenderError: the template raises, or the dummy cannot be found again in what it prints.
        """
        form = form or self._planned(roles)[1]
        if tools is not None:
            form = structs.replace(form, tools=tools)
        rendered = self._render(roles, form, before=before)
        last = rendered.rfind("Zqa")
        if last < 0:
            raise RenderError("it does not print what the assistant said")
        stop = self._stop.search(rendered, last)
        if stop is None:
            raise RenderError(f"none of the stop tokens {', '.join(self.stops) or '(none)'} follows the assistant")
        _check_slots(roles, rendered[: stop.start()], rendered[stop.start() :])
        return rendered[stop.start() :]

    def _planned(self, roles: Roles) -> tuple[Plan, Form]:
        known = self._plans.get(roles)
        if known is None:
            if len(self._plans) >= SHAPES:
                self._plans.clear()
            known = self._plans[roles] = self._made(roles)
        return known

    def _made(self, roles: Roles) -> tuple[Plan, Form]:
        """The form with the fewest stops before the first slot, and its plan."""
        found: list[tuple[int, str, Form]] = []
        faults: list[str] = []
        for calls, tools, empty in product((True, False) if "tool" in roles else (False,), (False, True), ("", None)):
            form = Form(calls=calls, tools=tools, empty=empty)
            try:
                tail = self.tail(roles, form=form)
            except RenderError as exc:
                faults.append(str(exc))
                continue
            stops = len(self._stop.findall(tail, 0, tail.index(_sentinel("c", 0))))
            found.append((stops, tail, form))
            if stops == 1:
                break
        if not found:
            raise RenderError(f"the chat template cannot follow an action with {', '.join(roles)}: {faults[0]}")
        _, tail, form = min(found, key=lambda candidate: candidate[0])
        return self._compiled(tail), form

    def _compiled(self, tail: str) -> Plan:
        """The tail with its slots as parts, its control strings as ids, its constant pieces encoded."""
        parts: list[str | int] = []
        for number, text in enumerate(_split_slots(tail)):
            if number % 2:
                parts.append(2 * int(text[3:]) + (text[2] == "n"))
            elif text:
                parts.append(text)
        fixed: list[list[int]] = [[]]
        pieces: list[tuple[str | int, ...]] = []
        piece: list[str | int] = []
        for part in parts:
            texts = self.controls.split(part) if isinstance(part, str) else [part]
            for number, constant in enumerate(texts):
                if isinstance(constant, str) and number % 2:
                    self._close(piece, pieces, fixed)
                    piece = []
                    fixed[-1].append(self.controls.ids[constant])
                elif constant != "":
                    piece.append(constant)
        self._close(piece, pieces, fixed)
        return Plan(closing=fixed[0][0], parts=tuple(parts), fixed=tuple(map(tuple, fixed)), pieces=tuple(pieces))

    def _close(self, piece: list[str | int], pieces: list[tuple[str | int, ...]], fixed: list[list[int]]) -> None:
        """End a piece: constant text becomes ids now, text with a slot waits for its values."""
        if all(isinstance(part, str) for part in piece):
            fixed[-1].extend(self.tokenizer.encode([_fill(tuple(piece), ())])[0])
        else:
            pieces.append(tuple(piece))
            fixed.append([])

    def _probed(self, role: Role) -> str:
        form = self._planned((role,))[1]
        before, _, after = self._render((role,), form).partition(_sentinel("c", 0))
        rendered = {probe: self._render((role,), form, contents=(probe,)) for probe in PROBES}
        for name, transform in TRANSFORMS.items():
            if all(text == before + transform(probe) + after for probe, text in rendered.items()):
                return name
        raise RenderError(
            f"the chat template changes the content of a {role} message in a way that is not supported; "
            f"supported: {', '.join(TRANSFORMS)}"
        )

    def _render(self, roles: Roles, form: Form, *, before: Dicts = (), contents: Sequence[str] = ()) -> str:
        messages = [*(before or [{"role": "user", "content": "Hi."}]), *dummy(roles, form, contents)]
        tools = for_chat_template([DUMMY_TOOL]) if form.tools else None
        with boundary(RenderError, "applying the chat template"):
            return self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True)


def dummy(roles: Roles, form: Form, contents: Sequence[str] = ()) -> list[dict[str, Any]]:
    """An action and new messages, sentinels in all that varies; `contents` stands in for the content sentinels."""
    action: dict[str, Any] = {"role": "assistant", "reasoning_content": "r", "content": form.empty}
    new: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for place, role in enumerate(roles):
        content = contents[place] if contents else _sentinel("c", place)
        if role == "tool":
            name, call = _sentinel("n", place), _sentinel("i", place)
            calls.append(call_dict(name, {"x": _sentinel("a", len(calls))}, call=call))
            new.append(tool_dict(content, name=name, call=call))
        else:
            new.append({"role": role, "content": content})
    if calls and form.calls:
        action["tool_calls"] = calls
    else:
        action["content"] = " ".join(_sentinel("a", number) for number in range(max(1, len(calls))))
    return [action, *new]


def _sentinel(kind: str, number: int) -> str:
    """Nine letters and digits, a shape that templates accept as a call id and as a function's name."""
    return f"Zq{kind}{number:06d}"


def _split_slots(tail: str) -> list[str]:
    return re.split(r"(Zq[cn]\d{6})", tail)


def _check_slots(roles: Roles, head: str, tail: str) -> None:
    """Every content exactly once, in order, in the tail; no call id, which an environment does not give us."""
    wanted = list(range(len(roles)))
    seen = [int(number) for kind, number in _SLOT.findall(tail) if kind == "c"]
    if seen != wanted or _sentinel("c", 0)[:3] in head:
        raise RenderError(f"it prints the new contents as {seen}, not each once and in order {wanted}")
    if "Zqi" in tail:
        raise RenderError("it prints the ids of tool calls after the call, which is not supported")
