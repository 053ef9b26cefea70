"""The judge: transformers' own rendering of whole conversations against what the renderer gives.

It uses `apply_chat_template` and the tokenizer of transformers alone, and knows nothing of plans or guards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from random import Random
from typing import Any, NamedTuple

from msgspec import structs
from orl_core.errors import RenderError
from orl_core.messages import Message, Role, TextBlock, ToolCall, ToolSpec
from orl_core.render import Renderer
from orl_rollout.tokenizer.tokenizer import HFTokenizer
from transformers.utils import chat_template_utils

from tests.core.tools.wire import without_ids
from tests.published.conversations import Dialect, Played, Shape, Step, as_dicts, as_tools, play
from tests.published.vocabularies import Case

SYSTEM = "The tools are:\n{tools}"
CLOCK = datetime(2026, 3, 1, 12)
CLOSINGS = ("</think>", "<|END_THINKING|>", "<channel|>", "[/THINK]", "</seed:think>", "</mm:think>")  # of reasoning


class _Stopped(datetime):
    """A frozen clock: templates print the day, and one prints the second."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return CLOCK


@contextmanager
def _stopped() -> Iterator[None]:
    """Give transformers' templates the frozen clock."""
    running = chat_template_utils.datetime  # pyright: ignore[reportPrivateImportUsage]
    chat_template_utils.datetime = _Stopped  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield
    finally:
        chat_template_utils.datetime = running  # pyright: ignore[reportPrivateImportUsage]


class Verdict(NamedTuple):
    """The verdict on one template. `wrong` are the first differences, empty if there are none."""

    certified: bool
    reason: str = ""  # why it is refused
    tool_format: str = ""
    told: bool = False  # the tools are told by a `system_prompt_template`
    limits: tuple[str, ...] = ()
    openings: int = 0
    extends: int = 0
    calls: int = 0
    hostile: int = 0
    unrendered: int = 0  # conversations that the template itself refuses
    rewritten: int = 0  # extends before which the template prints the history otherwise than it was
    misread: int = 0
    wrong: tuple[str, ...] = ()


def judge(case: Case, *, thinking: bool | None, conversations: int, hostile: int) -> Verdict:
    """Return the verdict for one template, with its reasoning switch on or off."""
    tokenizer = HFTokenizer(case.tokenizer, thinking=thinking, stop_ids=case.stop_ids, clock=CLOCK)
    told = False
    try:
        renderer = Renderer(tokenizer)
    except RenderError as exc:
        if "check 11" not in str(exc):
            return Verdict(certified=False, reason=str(exc))
        try:
            renderer, told = Renderer(tokenizer, system_prompt_template=SYSTEM), True
        except RenderError as exc:
            return Verdict(certified=False, reason=str(exc))
    return _Judged(case, renderer, variables=tokenizer.chat_template.variables, told=told).judged(
        conversations, hostile
    )


class _Judged:
    """One certified template under the judge."""

    def __init__(self, case: Case, renderer: Renderer, *, variables: dict[str, Any], told: bool) -> None:
        self.hf, self.renderer, self.told, self.variables = case.tokenizer, renderer, told, variables
        certificate = renderer.certificate
        notes = " ".join(certificate.notes)
        self.shape = Shape(
            user_turns=certificate.user_turns,
            mixed="together" not in notes,
            most_calls=certificate.calls_per_action or 5,
            system=certificate.system_messages,
            text_before_calls="moves the text" not in notes,
        )
        named = "kimi" in renderer.tool_format
        self.dialect = Dialect(as_text=self._as_text(), named_ids=named, own_ids=named and self._has_own_ids())
        stops = [*case.stop_ids, *([] if self.hf.eos_token_id is None else [self.hf.eos_token_id])]
        self.stops = {*stops, *self._alike(stops)}
        added: dict[str, int] = self.hf.get_added_vocab()
        self.controls = {token for text, token in added.items() if text.strip("\u2581 \t\r\n")}
        self.strings = [text for text, token in added.items() if token in self.controls]
        self.closing = self.ids(next((text for text in CLOSINGS if text in added), CLOSINGS[0]))
        self.found = Counter[str]()
        self.wrong: dict[str, tuple[int, str]] = {}

    def _alike(self, stops: list[int]) -> list[int]:
        """Return the stops that a template prints for another of the same meaning: gpt-oss, Llama."""
        vocabulary, found = self.hf.get_vocab(), list[int]()
        for group in (("<|eot_id|>", "<|eom_id|>"), ("<|return|>", "<|end|>")):
            ids = [vocabulary[text] for text in group if text in vocabulary]
            found += ids if set(ids) & set(stops) else []
        return found

    def _as_text(self) -> bool:
        """Return whether the template wants arguments as JSON text: it adds them to a string, or prints a dict."""
        call = Message(role="assistant", calls=(ToolCall(name="look", arguments={"where": "there"}),))
        told = [Message(role="user", content=(TextBlock(text="Hi."),)), call]
        specs = as_tools(
            [ToolSpec(name="look", parameters={"type": "object", "properties": {"where": {"type": "string"}}})]
        )
        try:
            return "{'where': 'there'" in self.render(as_dicts(told, Dialect(False, False)), specs, prompt=False)
        except Exception:  # noqa: BLE001  # whatever the template raises
            return True

    def _has_own_ids(self) -> bool:
        """Return whether the template prints a result with the id that it is given, and its call with another."""
        told: list[dict[str, Any]] = [
            {"role": "user", "content": "Hi."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "look:7", "type": "function", "function": {"name": "look", "arguments": {}}}],
            },
            {"role": "tool", "name": "look", "tool_call_id": "look:7", "content": "Dark."},
        ]
        return self.render(told, None).count("look:7") == 1

    def render(self, messages: list[dict[str, Any]], tools: Any, *, prompt: bool = True) -> str:
        """Return transformers' own rendering."""
        with _stopped():
            return self.hf.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False, **self.variables
            )

    def ids(self, rendered: str) -> list[int]:
        """Return transformers' own ids of a rendering, as `apply_chat_template` makes them."""
        return self.hf.encode(rendered, add_special_tokens=False, verbose=False)

    def judged(self, conversations: int, hostile: int) -> Verdict:
        """Return the verdict after so many conversations and hostile extends."""
        random = Random(11)
        for _ in range(conversations):
            self._conversation(play(random, self.shape))
        self._hostile(random, hostile)
        certificate = self.renderer.certificate
        limits = [
            *([] if certificate.user_turns else ["no user message after an action"]),
            *([] if certificate.calls_per_action is None else [f"calls in one action: {certificate.calls_per_action}"]),
            *([] if certificate.system_messages else ["no system message"]),
            *([] if certificate.without_tools else ["only with tools"]),
            *([] if self.shape.text_before_calls else ["the template moves text behind its calls"]),
        ]
        return Verdict(
            certified=True,
            tool_format=self.renderer.tool_format,
            told=self.told,
            limits=tuple(limits),
            wrong=tuple(f"{number} times {what}" for number, what in self.wrong.values()),
            openings=self.found["openings"],
            extends=self.found["extends"],
            calls=self.found["calls"],
            hostile=self.found["hostile"],
            unrendered=self.found["unrendered"],
            rewritten=self.found["rewritten"],
            misread=self.found["misread"],
        )

    def _opening(self, played: Played) -> tuple[list[dict[str, Any]], Any]:
        """Return the opening as the template gets it: with its tools, or told by the system message."""
        dicts = as_dicts(played.opening, self.dialect)
        if not self.told:
            return dicts, as_tools(played.tools)
        from orl_core.tools.format import for_system_prompt  # the text of `{tools}`, which is documented as its own

        system = SYSTEM.format(tools=for_system_prompt(played.tools))
        if dicts[0]["role"] == "system":
            system = f"{system}\n\n{dicts.pop(0)['content']}"
        return [{"role": "system", "content": system}, *dicts], None

    def _conversation(self, played: Played) -> None:
        history, tools = self._opening(played)
        try:
            prompt = self.render(history, tools)
        except Exception:  # noqa: BLE001  # the template refuses this conversation
            self.found["unrendered"] += 1
            return
        ours, whole = list(self.renderer.open(played.opening, played.tools)), self.ids(prompt)
        self.found["openings"] += 1
        if ours != whole:
            self._differs("opening", ours, whole)
        before = sum(len(message.calls) for message in played.opening)
        messages = list(played.opening)
        after = messages[-1].role
        for step in played.steps:
            messages += [step.action, *step.answers]
            later = as_dicts(messages, self.dialect)[len(played.opening) :]
            whole_history = [*history, *later]
            try:
                rendered = self.render(whole_history, tools)
            except Exception:  # noqa: BLE001
                self.found["unrendered"] += 1
                return
            if added := self._step(step, rendered, before):
                self._read(prompt, rendered, added, step, (played.tools, after))
            self.found["rewritten"] += not rendered.startswith(prompt)
            before += len(step.action.calls)
            prompt, after = rendered, step.answers[-1].role

    def _step(self, step: Step, rendered: str, before: int) -> int:
        """Compare what follows the action, up to the end of the whole conversation. Return how many ids are equal."""
        whole = self.ids(rendered)
        ours = list(self.renderer.extend((), step.answers, calls_before=before))
        self.found["extends"] += 1
        if whole[-len(ours) :] != ours:
            self._differs("extend", ours, whole[-len(ours) :])
            return 0
        if ours[0] not in self.stops:
            self._differs("extend without a closing", ours, whole[-len(ours) :])
        return len(ours)

    def _read(self, prompt: str, rendered: str, added: int, step: Step, told: tuple[Sequence[ToolSpec], Role]) -> None:
        """Parse the action as the template writes it, up to the last `added` ids, and compare its calls and types."""
        action = step.action
        if not action.calls:
            return
        if rendered.startswith(prompt):
            ids = self.ids(rendered.removeprefix(prompt))
        else:  # a past action lacks the reasoning that the prompt opens
            whole, shown = self.ids(rendered), self.ids(prompt)
            shared = next(n for n, pair in enumerate(zip(whole, shown, strict=False)) if pair[0] != pair[1])
            ids = [*self.closing, *whole[shared:]]
        specs, after = told
        found = self.renderer.parse(ids[:-added], specs, after=after).calls
        own = found if rendered.startswith(prompt) else found[-len(action.calls) :]  # earlier ones may precede them
        self.found["calls"] += len(action.calls)
        self._check_ids(step, rendered, [call.id for call in own])
        if without_ids(own) != action.calls:
            self.found["misread"] += 1
            self._differs_in(f"call: {self.hf.decode(ids[:-added])!r} gives {found!r}, not {action.calls!r}")

    def _check_ids(self, step: Step, rendered: str, ids: list[str]) -> None:
        """Check that results under the ids that were read are those that the template prints."""
        if any(ids):
            numbered = [*ids, *[""] * (len(step.answers) - len(ids))]
            answers = tuple(structs.replace(one, id=id_) for one, id_ in zip(step.answers, numbered, strict=True))
            ours, whole = list(self.renderer.extend((), answers, calls_before=0)), self.ids(rendered)
            if whole[-len(ours) :] != ours:
                self._differs("extend with the ids of the calls", ours, whole[-len(ours) :])

    def _hostile(self, random: Random, number: int) -> None:
        """Extend with texts made of control strings: the control ids must be those of a benign extend."""
        most = self.shape.most_calls
        for _ in range(number):
            count = random.randint(1, min(3, most))
            hostile = [
                "".join(self._attack(random, self.strings) for _ in range(random.randint(1, 3))) for _ in range(count)
            ]
            self.found["hostile"] += 1
            ours, benign = (
                self.renderer.extend((), tuple(_result(text) for text in texts), calls_before=0)
                for texts in (hostile, ["x"] * count)
            )
            ours, benign = ([token for token in ids if token in self.controls] for ids in (ours, benign))
            if ours != benign:
                self._differs_in(f"law L4: {hostile!r} brings control ids")

    @staticmethod
    def _attack(random: Random, strings: list[str]) -> str:
        one = random.choice(strings)
        cut = random.randint(0, len(one))
        return random.choice((one, one[:cut], one[cut:], one + one[:cut], f" {one}\n", "plain"))

    def _differs(self, what: str, ours: list[int], whole: list[int]) -> None:
        same = next((n for n, pair in enumerate(zip(ours, whole, strict=False)) if pair[0] != pair[1]), len(ours))
        shown = [self.hf.decode(ids[max(0, same - 20) : same + 40]) for ids in (ours, whole)]
        self._differs_in(
            f"{what}: {shown[0]!r} is not {shown[1]!r}, ids {ours[same : same + 4]}, {whole[same : same + 4]}"
        )

    def _differs_in(self, what: str) -> None:
        """Count a difference by its kind, and keep the first of each."""
        kind = what.partition(":")[0]
        self.wrong[kind] = (self.wrong[kind][0] + 1, self.wrong[kind][1]) if kind in self.wrong else (1, what)


def _result(text: str) -> Message:
    return Message(role="tool", name="look", content=(TextBlock(text=text),))
