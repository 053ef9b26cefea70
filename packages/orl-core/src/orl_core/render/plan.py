"""Plans: what follows an action, worked out once for each shape of new messages (law L5).

A shape is the roles of the new messages. Its plan comes from one render of a short dummy conversation, with sentinels
in all that varies: the tail begins at the first closing after the last argument, and a slot is a sentinel in it. A
difference of two renders would fail on templates that look at the last message, such as Qwen3's. Control ids come from
the plan alone. A text in a slot is encoded together with the constant text around it, so that merges are the
tokenizer's own.

How the template changes a content before it prints it is found by probing: a transform depends on the content alone. If
no named one fits, the template renders every content, in the short dummy of its plan: one more small render, and just
as exact. A template that changes more than the content is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count, pairwise, product
from typing import NamedTuple

from msgspec import Struct

from orl_core.errors import RenderError, boundary
from orl_core.messages import Role, ToolSpec
from orl_core.render.controls import Controls
from orl_core.render.conversation import Dialect
from orl_core.render.dummy import (
    DUMMY_TOOL,
    HELLO,
    KINDS,
    Dicts,
    Form,
    Roles,
    dummy,
    misplaced,
    rounds,
    sentinel,
    split_slots,
    without_slots,
)
from orl_core.render.junction import closings
from orl_core.render.tokenizer import Tokenizer
from orl_core.tools.format import for_chat_template

_COUNTED = re.compile(r"([^\d\n]*[^\d\s][^\d\n]*)(\d+)")  # a number, and what precedes it in its line
SHAPES = 256  # plans kept; a model that writes calls without end makes shapes without end


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


class Transform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of content: its name in the certificate, and the function."""

    name: str
    of: Callable[[str], str]


def probe(render: Callable[[str], str], before: str, after: str, *, prefix: str, suffix: str) -> Transform | None:
    """Return the transform of a template that prints a content between `before` and `after`; None if it prints more.

    `prefix` and `suffix` are the constant texts at its edges: a template may look whether the content has them already.
    """
    edges = {edge for text in (prefix, suffix) for edge in (text, text.strip(), *text.split("\n"))}
    rendered = {text: render(text) for edge in edges for text in (edge, edge + "a", "a" + edge)}
    rendered |= {text: render(text) for text in PROBES}
    for name, change in TRANSFORMS.items():
        if all(text == before + change(content) + after for content, text in rendered.items()):
            return Transform(name=name, of=change)
    of = content_of(render, before, after)
    try:
        same = all(text == before + of(content) + after for content, text in rendered.items())
    except RenderError:
        return None
    return Transform(name="as the template prints it, asked each time", of=of) if same else None


def content_of(render: Callable[[str], str], before: str, after: str) -> Callable[[str], str]:
    """Return a content as the template prints it; raise RenderError if it prints something else too."""

    def of(content: str) -> str:
        text = render(content)
        if len(text) < len(before) + len(after) or not (text.startswith(before) and text.endswith(after)):
            raise RenderError("the chat template changes more than the content that it prints")
        return text[len(before) : len(text) - len(after)]

    return of


class _NoTail(RenderError):
    """A dummy conversation without a tail; `stage` says how far it came."""

    def __init__(self, stage: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def _furthest(faults: Sequence[RenderError]) -> RenderError:
    return max(faults, key=lambda fault: fault.stage if isinstance(fault, _NoTail) else 0)


class TailPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ids that follow an action, with slots. `fixed` and `pieces` alternate, `fixed` first and last.

    A part of a piece is constant text or the index of a value: 3·i is the content of new message i, 3·i+1 its name,
    3·i+2 the id of the call that it answers. `parts` is the same tail as text.
    """

    closing: int
    parts: tuple[str | int, ...]
    fixed: tuple[tuple[int, ...], ...]
    pieces: tuple[tuple[str | int, ...], ...]

    def text(self, values: Sequence[str]) -> str:
        """Return the tail as the template would print it."""
        return _fill(self.parts, values)

    def ids(self, tokenizer: Tokenizer, values: Sequence[str]) -> list[int]:
        """Return the tail as ids, the closing first. One batch through the plain encoder, nothing else."""
        ids = list(self.fixed[0])
        encoded = tokenizer.encode([_fill(piece, values) for piece in self.pieces])
        for piece, fixed in zip(encoded, self.fixed[1:], strict=True):
            ids.extend(piece)
            ids.extend(fixed)
        return ids


def _fill(parts: tuple[str | int, ...], values: Sequence[str]) -> str:
    return "".join([part if isinstance(part, str) else values[part] for part in parts])


class Count(NamedTuple):
    """The numbers that a template gives to results itself: what precedes one in its line, and the first.

    `whole`: it counts over the whole conversation, else over the results of an action.
    """

    lead: str
    first: int
    whole: bool


class Plans:
    """The plans and content transforms of one tokenizer and template, each made when it is first asked for.

    `shown` says whether the template is given the tools; with a `system_prompt_template` it is not. `counting` says
    that what the template prints depends on the number of calls before, and keys the plans by it. `count` are the
    numbers that the template gives to results, each of them the slot of a call id. `own_ids`: as in `Dialect`.
    `why_no_calls` says why the dummies have no calls, where the template has them in no form that can be followed.
    `merged` says that results and the user message after them are one message of the template.
    """

    def __init__(self, tokenizer: Tokenizer, controls: Controls, *, shown: bool = True, merged: bool = False) -> None:
        self.tokenizer = tokenizer
        self.controls = controls
        self.shown = shown
        self.merged = merged
        self.counting = False
        self.count: Count | None = None
        self.own_ids = False
        self.why_no_calls = ""
        stops = [text for text, token in controls.ids.items() if token in tokenizer.stop_ids]
        self.stops = closings(stops, controls.ids)
        self._stop = re.compile("|".join(map(re.escape, self.stops)) or r"(?!)")
        self._plans: dict[tuple[Roles, int], tuple[TailPlan, Form]] = {}
        self._transforms: dict[Role, Transform] = {}

    def plan(self, roles: Roles, calls_before: int = 0) -> TailPlan:
        """Return the plan for new messages of these roles."""
        return self._planned(roles, calls_before)[0]

    def form(self, roles: Roles) -> Form:
        """Return how the dummy looked that the plan for these roles was made from."""
        return self._planned(roles, 0)[1]

    def transform(self, role: Role) -> Transform:
        """Return how the template changes a content of this role."""
        if role not in self._transforms:
            self._transforms[role] = self._probed(role)
        return self._transforms[role]

    def values(self, roles: Roles, contents: Sequence[str], names: Sequence[str], ids: Sequence[str]) -> list[str]:
        """Return the texts for the slots: contents as the template changes them, each with its name and call id."""
        values: list[str] = []
        for index, (role, content, name, call) in enumerate(zip(roles, contents, names, ids, strict=True)):
            change = self._behind_results(roles, index) if self._is_merged(roles, index) else self.transform(role).of
            values += (change(content), name, call)
        return values

    def call_ids(
        self, sampled: Sequence[str], names: Sequence[str], dialect: Dialect, calls_before: int = 0
    ) -> list[str]:
        """Return the ids that results show: the sampled ones, and the template's for calls without one."""
        first = 0 if dialect.own_ids else calls_before
        if self.count:
            first = self.count.first + calls_before * self.count.whole
        numbered = enumerate(zip(sampled, names, strict=True), first)
        return [
            id_ or (str(number) if self.count else dialect.call_id(number, name)) for number, (id_, name) in numbered
        ]

    def find_count(self) -> None:
        """Find the number that the template gives to a result, where the next result has the next number.

        Find also whether what follows a result depends on the number of calls before (`counting`).
        """
        result: Roles = ("tool",)
        before = rounds([1], as_text=self.form(result).as_text)
        with suppress(RenderError):
            first, second, _ = re.split(r"Zqc\d+", self.tail(("tool", "tool")))
            numbers, following = (dict(_COUNTED.findall(without_slots(text))) for text in (first, second))
            later = self.tail(result, before=before)
            for lead, number in numbers.items():
                if following.get(lead) == str(int(number) + 1):
                    self.count = Count(lead, int(number), f"{lead}{number}" not in later)
        self._plans.clear()
        self.counting = self.tail(result, before=before) != self.tail(result)

    def tail(
        self,
        roles: Roles,
        *,
        before: Dicts = (),
        tools: Sequence[ToolSpec] | None = None,
        form: Form | None = None,
    ) -> str:
        """Return the tail as text, with its sentinels, of a dummy conversation that begins with `before`.

        `tools` are what the template is given; None and no `form` mean: as the plan was made.
        """
        form = form or self.form(roles)
        rendered = self._render(roles, form, self.tools if tools is None else tools, before=before)
        last = rendered.rfind("Zqa")
        if last < 0:
            raise _NoTail(1, "it does not print what the assistant said")
        stop = self._stop.search(rendered, last)
        if stop is None:
            remedy = "name the token that ends a turn: `eos_token_id` of generation_config.json, or `stop_tokens`"
            stops = ", ".join(self.stops) or "(none)"
            raise _NoTail(2, f"none of the stop tokens {stops} follows the assistant; {remedy}")
        head, tail = rendered[: stop.start()], rendered[stop.start() :]
        self.own_ids = self.own_ids or (form.calls and "Zqi" in tail and "Zqi" not in head)
        if self.count is not None:
            places = count()
            tail = re.sub(rf"(?<={re.escape(self.count.lead)})\d+", lambda _: sentinel("i", next(places)), tail)
        if fault := misplaced(roles, head, tail):
            raise _NoTail(3, fault)
        return tail

    def expected(self, roles: Roles, calls_before: int) -> str:
        """Return the tail, with its sentinels, after so many calls, if that makes a difference."""
        if not self.counting or not calls_before:
            return self.tail(roles)
        return self.tail(roles, before=rounds([1] * calls_before, as_text=self.form(("tool",)).as_text))

    def _planned(self, roles: Roles, calls_before: int) -> tuple[TailPlan, Form]:
        key = roles, calls_before if self.counting else 0
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= SHAPES:
                self._plans.clear()
            known = self._plans[key] = self._made(*key)
        return known

    def _made(self, roles: Roles, calls_before: int) -> tuple[TailPlan, Form]:
        """Return the form with the fewest stops before the first slot, and its plan."""
        if calls_before:
            form = self.form(roles)
            return self._compiled(self.expected(roles, calls_before), roles), form
        candidates: list[tuple[int, str, Form]] = []
        faults: list[RenderError] = []
        for calls, as_text, empty in product(*self._choices(roles), ("", None)):
            form = Form(calls=calls, as_text=as_text, empty=empty)
            try:
                tail = self.tail(roles, form=form)
            except RenderError as exc:
                faults.append(exc)
                continue
            stops = len(self._stop.findall(tail, 0, tail.index(sentinel("c", 0))))
            candidates.append((stops, tail, form))
            if stops == 1:
                break
        if not candidates:
            what = ", ".join(roles)
            raise RenderError(f"the chat template cannot follow an action with {what}: {_furthest(faults)}")
        _, tail, form = min(candidates, key=lambda candidate: candidate[0])
        if faults and "tool" in roles and not form.calls:
            self.why_no_calls = str(_furthest(faults))
        return self._compiled(tail, roles), form

    def _choices(self, roles: Roles) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Return whether to try calls and arguments as text: what a single call needs goes for several too."""
        if "tool" not in roles:
            return (False,), (False,)
        if roles == ("tool",):
            return (True, False), (False, True)
        single = self.form(("tool",))
        return (single.calls,), (single.as_text,)

    def _compiled(self, tail: str, roles: Roles) -> TailPlan:
        """Return the tail with its slots as parts, its control strings as ids, its constant pieces encoded."""
        parts = split_slots(tail)
        for place, (before, slot) in enumerate(pairwise(parts)):
            if isinstance(before, str) and isinstance(slot, int) and self._is_merged(roles, slot // len(KINDS)):
                parts[place] = before.rstrip()
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
        return TailPlan(closing=fixed[0][0], parts=tuple(parts), fixed=tuple(map(tuple, fixed)), pieces=tuple(pieces))

    def _close(self, piece: list[str | int], pieces: list[tuple[str | int, ...]], fixed: list[list[int]]) -> None:
        """End a piece: constant text becomes ids now, text with a slot waits for its values."""
        if all(isinstance(part, str) for part in piece):
            fixed[-1].extend(self.tokenizer.encode([_fill(tuple(piece), ())])[0])
        else:
            pieces.append(tuple(piece))
            fixed.append([])

    def _is_merged(self, roles: Roles, index: int) -> bool:
        """Return whether new message `index` is a user message that the template prints as the end of results."""
        return self.merged and roles[max(0, index - 1) : index + 1] == ("tool", "user")

    def _behind_results(self, roles: Roles, index: int) -> Callable[[str], str]:
        """Return a content as the template prints it behind results, with the white space before it.

        A template that strips messages strips that too, if the content is blank.
        """
        form, contents = self.form(roles), [sentinel("c", place) for place in range(len(roles))]
        before, _, after = self._render(roles, form, ()).partition(contents[index])

        def render(content: str) -> str:
            return self._render(roles, form, (), contents=[*contents[:index], content, *contents[index + 1 :]])

        return content_of(render, before.rstrip(), after)

    def _probed(self, role: Role) -> Transform:
        roles: Roles = (role,)
        form = self.form(roles)
        before, _, after = self._render(roles, form, self.tools).partition(sentinel("c", 0))
        prefix, suffix = self.controls.split(before)[-1], self.controls.split(after)[0]
        transform = probe(
            lambda content: self._render(roles, form, self.tools, contents=(content,)),
            *(before, after),
            prefix=prefix[prefix.rfind("Zq") + 9 :] if "Zq" in prefix else prefix,
            suffix=suffix.partition("Zq")[0],
        )
        if transform is None:
            raise RenderError(
                f"the chat template changes the content of a {role} message in a way that is not supported"
            )
        return transform

    def _render(
        self, roles: Roles, form: Form, tools: Sequence[ToolSpec], *, before: Dicts = (), contents: Sequence[str] = ()
    ) -> str:
        return self.apply([*(before or HELLO), *dummy(roles, form, contents)], tools)

    def apply(self, messages: Dicts, tools: Sequence[ToolSpec] = (), *, prompt: bool = True) -> str:
        """Return what the template prints, with the generation prompt or without."""
        shown = for_chat_template(tools) or None
        with boundary(RenderError, "applying the chat template"):
            return self.tokenizer.apply_chat_template(messages, tools=shown, add_generation_prompt=prompt)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools of dummy conversations, if the template is given any."""
        return (DUMMY_TOOL,) if self.shown else ()
