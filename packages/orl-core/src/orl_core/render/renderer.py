"""The renderer: messages to ids, ids to an action, and long tool results cut; nothing is rendered twice.

It knows no engine, environment or history. It is made and certified once for a run, and shared by rollouts and threads.

Some models were trained without tools, and their template has no role for results. If the calls of such a model are
prompted, its results are user messages, as in the OpenReward cookbook: its tokenizer is wrapped, so that plans and
certificate see one template that can print results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Literal

from msgspec import structs

from orl_core.errors import RenderError, boundary, expect, expect_each
from orl_core.messages import Action, Message, Role, Span, ToolCall, ToolSpec
from orl_core.render import certify
from orl_core.render.call_check import (
    CallCheck,
    Case,
    Rendering,
    action_text,
    check_taught,
    choose_format,
    difference,
)
from orl_core.render.calls import CallReader, reasoning_opened
from orl_core.render.controls import GUARDS, Controls
from orl_core.render.conversation import text_content
from orl_core.render.dummy import DUMMY_TOOL, HELLO, Form, Roles, dummy, sentinel
from orl_core.render.junction import ActionBoundary
from orl_core.render.opening import OpeningRenderer
from orl_core.render.plan import Plans
from orl_core.render.tokenizer import Tokenizer
from orl_core.text import clean
from orl_core.tools import ToolFormat, wire_format
from orl_core.tools.format import for_chat_template

_MARKER = "\n[… cut here: the result is longer than its budget]"
_AS_MESSAGE = ', of a result Message(role="tool", content=result.content, name=result.name)'
_OPENINGS = 16  # that are kept: rollouts of one task begin with the same one, and at about the same time
_CHARACTERS_PER_TOKEN = 8  # about twice what prose, code and JSON have on average


class Renderer:
    """Renders for one tokenizer and chat template.

    `tool_format` is the wire format of calls; `auto` takes the one that `system_prompt_template` teaches, or else that
    of the chat template's own calls. `system_prompt_template` replaces the template's rendering of the tools: a text
    with `{tools}`, a system message of the environment is appended to it. If the chat template knows no tools, results
    are user messages. `thinking` are the tags of reasoning. `stop_ids` end an action, the ones that the template closes
    with first.

    Raises:
        RenderError: the certificate fails; the message names the check, the law, the text and the ids.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tool_format: ToolFormat | Literal["auto"] = "auto",
        system_prompt_template: str | None = None,
    ) -> None:
        expect(Tokenizer, "tokenizer", tokenizer)
        self._tokenizer = tokenizer
        self.vocabulary_size = tokenizer.vocabulary_size
        self._controls = Controls(tokenizer)
        self._kept: dict[str, tuple[int, ...]] = {}
        self._plans = Plans(tokenizer, self._controls, shown=system_prompt_template is None)
        with boundary(RenderError, "certifying the tokenizer and its chat template"):
            # 1. The vocabulary alone, then the format of calls.
            checks = certify.before_plans(tokenizer, self._controls)
            written = CallCheck(self._plans)
            self._format = choose_format(written, tool_format, system_prompt_template)
            plain = self._format.is_taught and not knows_results(tokenizer)
            if plain:
                tokenizer = ResultsAsUser(tokenizer)
                self._plans = Plans(tokenizer, self._controls, shown=False, merged=True)
                written = CallCheck(self._plans)
            # 2. What follows an action: plans, closings, and where the prompt opens reasoning.
            self.tool_format: ToolFormat = self._format.calls
            self.thinking = wire_format(self._format.frame).thinking
            self._dialect = written.dialect(self._format.frame)
            extent, more = certify.plans(self._plans, self._dialect)
            self._extent, self._written = extent, written
            self._boundary = ActionBoundary(extent.closing, self._controls.ids)
            self._opened = reasoning_opened(self._plans, tuple(extent.closing), self._format.frame)
            # 3. Actions are read, and first messages are written.
            self._calls = CallReader(tokenizer, self._controls, self.tool_format, self._format.frame)
            self._opening = OpeningRenderer(tokenizer, self._controls, self._dialect, system_prompt_template)
            checks += more + certify.openings(self._opening, self._controls, tokenizer.encode_joint)
            # 4. Whole conversations are the template's own, and its calls are read back.
            checks.append(certify.whole_conversations(self._plans, extent, self._dialect))
            taught = self._format.is_taught
            checks.append(
                check_taught(self._controls, self._calls) if taught else written.check(self._dialect, self._calls)
            )
            base = certify.certificate(checks, extent, self._plans, self._opened)
            notes = (*base.notes, *([self._format.why] if taught else []), *([AS_USER] if plain else []))
            self.certificate = structs.replace(base, notes=notes)
        stops = [token for token in extent.closing.values() if token in tokenizer.stop_ids]
        self.stop_ids = tuple(dict.fromkeys((*stops, *tokenizer.stop_ids)))

    @property
    def strips(self) -> bool:
        """Return whether reasoning can be cut out by `hide`: the two tags that delimit it must be control ids."""
        return self._controls.ids.keys() >= set(self.thinking)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the ids of the first messages and tools, up to where the model begins to speak.

        Raises:
            RenderError: an image, a conversation that the template cannot express, or law L4 cannot be kept.
        """
        messages, tools = expect_each(Message, "messages", messages), expect_each(ToolSpec, "tools", tools)
        if not self.certificate.system_messages and any(message.role == "system" for message in messages):
            raise RenderError("after a system message this chat template renders results otherwise: put it elsewhere")
        if not self.certificate.without_tools and not tools:
            raise RenderError("without tools this chat template renders results otherwise or not at all: give it tools")
        if self._format.is_taught and any(message.calls for message in messages):
            raise RenderError(
                "the first messages hold calls, which the chat template writes in its own format, not in "
                f"`{self.tool_format}`, which is taught: leave `system_prompt_template` out"
            )
        written = repr((messages, tools))  # not by `==`: there 1 is True, and keys have no order
        ids = self._kept.get(written)
        if ids is None:
            ids = tuple(self._opening.ids(messages, tools))
            if len(self._kept) >= _OPENINGS:
                self._kept.clear()
            self._kept[written] = ids
        return ids

    def too_long(self, messages: Sequence[Message], tools: Sequence[ToolSpec], budget: int) -> bool:
        """Return whether an opening is far over a budget of ids: it has more than eight characters for each of them.

        Nothing is tokenized: a megabyte of text takes a hundred megabytes while it is.

        Raises:
            RenderError: an image.
        """
        return self._opening.length(messages, tools) > budget * _CHARACTERS_PER_TOKEN

    def can_follow(self, action_ids: Sequence[int], messages: Sequence[Message]) -> bool:
        """Return whether these messages may follow the action; not so if it ended in the stop before another role.

        GLM ends an action with the opener of the next role: after `<|user|>` a tool result would be no such thing.
        """
        return not messages or self._boundary.can_follow(action_ids, messages[0].role)

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message], *, calls_before: int) -> tuple[int, ...]:
        """Return the ids that follow an action: its closing if it is missing, then tool results and user messages.

        Stateless: of the history only the action's last id is looked at, and no action id is ever changed. An action
        that ended in a stop token of the same meaning as the template's keeps it; one that ended in another is closed
        in full. A result shows the id that the model gave to its call. `calls_before` counts the results rendered so
        far, for templates that print ids where the model gave none.

        Raises:
            RenderError: an image, a role that cannot follow an action, messages that do not fit this one, or a shape
                that the template cannot express.
        """
        messages = expect_each(Message, "messages", messages, _AS_MESSAGE)
        roles: Roles = tuple(message.role for message in messages)
        if not roles or not self._boundary.follows.issuperset(roles):
            refused, can = ", ".join(roles) or "nothing", " and ".join(sorted(self._boundary.follows))
            raise RenderError(f"an action is followed by {can} messages, not by {refused}")
        if not self._extent.mixed and len(set(roles)) > 1:
            raise RenderError("results and a user message cannot follow an action together in this chat template")
        if not self.can_follow(action_ids, messages):
            raise RenderError(f"the action ended in token {action_ids[-1]}, which a {roles[0]} message cannot follow")
        # Content, name and call id of each message fill the slots of the plan; its ids are the template's own.
        contents = [text_content(message, index) for index, message in enumerate(messages)]
        names = [clean(message.name) for message in messages]
        calls = self._plans.call_ids([clean(message.id) for message in messages], names, self._dialect, calls_before)
        values = self._plans.values(roles, contents, names, calls)
        ids = self._plans.plan(roles, calls_before).ids(self._tokenizer, values)
        return self._boundary.join(action_ids, ids, roles[0])

    def write(self, action: Action, tools: Sequence[ToolSpec] = (), *, after: Role = "user") -> tuple[int, ...]:
        """Return the ids of an action that a program wrote, its stop token included; `read` gives it back.

        The chat template writes it, or `system_prompt_template` teaches how.

        Raises:
            RenderError: a call is malformed, or the action cannot be expressed.
        """
        expect(Action, "action", action)
        calls = tuple(call for call in action.calls if isinstance(call, ToolCall))
        content, reasoning = clean(action.text).strip(), clean(action.reasoning).strip()
        shown = calls[-1].name if calls else content
        case = Case(name="an action", calls=calls, text=content, reasoning=reasoning, shows=(shown,))
        if self._format.is_taught and calls:
            text = action_text(case, self.tool_format, lambda part: self._controls.guard(part, GUARDS[0]))
            rendering = Rendering(text=text, prompt=text)
        else:
            rendering = self._written.write(case, self._dialect)
        ids = self._controls.encode(rendering.text, GUARDS[0])
        if not ids or ids[-1] not in self._tokenizer.stop_ids:
            ids.append(self._extent.closing.get("tool" if calls else "user", self.stop_ids[0]))
        reread = self.parse(ids, tools, after=after)
        same = reread.reasoning.strip() == reasoning if reasoning else True
        wrong = difference(case, structs.replace(reread, reasoning="") if reasoning else reread, rendering)
        if wrong or not same or len(calls) < len(action.calls):
            raise RenderError(f"an action is written as {rendering.plain!r}, which is read as {reread}")
        return tuple(ids)

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec] = (), *, after: Role = "user") -> Action:
        """Parse the ids of an action. Total: any ids give an Action.

        `tools` are those that the model was shown: where the wire format carries arguments as texts, their schemas say
        which are numbers, objects and so on. No call is checked against them.

        A delimiter that the vocabulary holds as one token counts as that id only (law L4); text that spells it is text.
        The stop token at the end says nothing. `after` is the role of the last message before the action: some
        prompts open the reasoning after a user message and not after a result.
        """
        return self.read(ids, tools, after=after)[0]

    def read(
        self, ids: Sequence[int], tools: Sequence[ToolSpec] = (), *, after: Role = "user"
    ) -> tuple[Action, tuple[Span, ...]]:
        """Parse as `parse` does, and tell which ids are reasoning and calls; all others are text.

        The stop token at the end counts with the part that it follows.
        """
        tools = expect_each(ToolSpec, "tools", tools or ())
        stopped = bool(ids) and ids[-1] in self._tokenizer.stop_ids
        action_ids = ids[:-1] if stopped else ids
        action, spans = self._calls.read(action_ids, tools, reasoning_opened=self.opens(after))
        if stopped and spans and spans[-1].end == len(ids) - 1:
            spans = (*spans[:-1], structs.replace(spans[-1], end=len(ids)))
        return action, spans

    def hide(
        self, observation: Sequence[int], action_ids: Sequence[int], spans: Sequence[Span], *, after: Role = "user"
    ) -> tuple[tuple[int, int], ...]:
        """Return what stripping the reasoning takes out of a turn: ranges of `observation` followed by `action_ids`.

        Cut at the control ids, with the white space after them, and without the stop token. Where the prompt opened
        the reasoning, as `after` says (see `parse`), that opening goes too. Nothing is encoded again; what stays are
        the ids as they were.
        """
        most = len(action_ids) - (bool(action_ids) and action_ids[-1] in self._tokenizer.stop_ids)
        ranges: list[tuple[int, int]] = []
        for span in (span for span in spans if span.part == "reasoning"):
            start, end = len(observation) + span.start, min(span.end, most)
            while end < most and self._tokenizer.decode(action_ids[end : end + 1]).isspace():
                end += 1
            if span.start == 0 and self.opens(after):
                opening = self._controls.ids[self.thinking[0]]
                backwards = range(len(observation) - 1, -1, -1)
                start = next((index for index in backwards if observation[index] == opening), len(observation))
            ranges.append((start, len(observation) + end))
        return tuple(ranges)

    def opens(self, after: Role) -> bool:
        """Return whether the prompt after a message of this role opens the reasoning."""
        return self._opened.get(after, self._opened["user"])

    def cut(self, text: str, budget: int) -> str:
        """Cut `text` to about `budget` ids with a visible marker, if it is longer. Cost is bounded by `budget`.

        A text of more than eight characters a token, white space mostly, may be cut although it would fit.
        """
        text = clean(text)
        if len(text) * 4 <= budget or len(text.encode()) <= budget:
            return text
        limit = budget * _CHARACTERS_PER_TOKEN
        head = text[:limit]
        (ids,), (marker,) = self._tokenizer.encode([head]), self._tokenizer.encode([_MARKER])
        if len(ids) <= budget and len(text) <= limit:
            return text
        kept = ids[: max(0, budget - len(marker))]
        return self._tokenizer.decode(kept).rstrip("\ufffd") + _MARKER


RESPONSE = ("<tool_response>\n", "\n</tool_response>")  # around a result: the cookbook's, Hermes' and Qwen's
AS_USER = "the chat template has no role for results: they are user messages, each in `<tool_response>`"
_UNKNOWN = "zqrole"  # a role that no template knows


def knows_results(tokenizer: Tokenizer) -> bool:
    """Return whether the chat template has its own way to print results.

    It has none if it refuses or drops a result. It has none either if it prints a result like a message of an unknown
    role, unless it also prints calls or tools: a template for tools may print all roles alike.
    """
    for calls, as_text, empty in product((True, False), (False, True), ("", None)):
        form = Form(calls=calls, as_text=as_text, empty=empty)
        plain, listed = (_printed(tokenizer, "tool", form, tools=tools) for tools in (False, True))
        unknown = _printed(tokenizer, _UNKNOWN, form, tools=False).lower().replace(_UNKNOWN, "tool")
        if plain.lower() != unknown or listed != plain or (calls and sentinel("a", 0) in plain):
            return True
    return False


def _printed(tokenizer: Tokenizer, role: str, form: Form, *, tools: bool) -> str:
    """Return a conversation that ends in a result of this role; empty if the template refuses or drops the result."""
    *before, result = [*HELLO, *dummy(("tool",), form)]
    text = ""
    with suppress(RenderError), boundary(RenderError, "applying the chat template to a result"):
        text = tokenizer.apply_chat_template(
            [*before, {**result, "role": role}],
            tools=for_chat_template([DUMMY_TOOL]) if tools else None,
            add_generation_prompt=True,
        )
    return text if sentinel("c", 0) in text else ""


class ResultsAsUser:
    """Wrap a tokenizer: its chat template prints results as user messages.

    The results of an action are one message, and a user message after them is the end of it: many templates demand that
    roles alternate.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added_tokens = tokenizer.added_tokens
        self.vocabulary_size = tokenizer.vocabulary_size
        self.stop_ids = tokenizer.stop_ids
        self.encode = tokenizer.encode
        self.encode_joint = tokenizer.encode_joint
        self.decode = tokenizer.decode

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text of a conversation; see `Tokenizer`."""
        shown: list[Mapping[str, Any]] = []
        last = ""
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "tool":
                content = f"{RESPONSE[0]}{content}{RESPONSE[1]}"
            if last == "tool" and role in ("tool", "user"):
                shown[-1] = {"role": "user", "content": f"{shown[-1]['content']}\n{content}"}
            else:
                shown.append({"role": "user", "content": content} if role == "tool" else message)
            last = role
        return self._tokenizer.apply_chat_template(shown, tools=tools, add_generation_prompt=add_generation_prompt)
