"""The id of a result in the prompt is the id of the call that it answers, in every format whose calls have ids.

Each call has a word of its own, which its result repeats. The ids are what a model may write: counted over the
conversation or from the beginning again, with gaps where a call was lost, or the same one twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from orl_core.limits import Limits
from orl_core.messages import TextBlock, ToolCall, ToolResult, ToolSpec
from orl_core.trajectory import Generation, RolloutSpec
from orl_gateway import Episode
from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.responses import RESPONSES
from orl_rollout.loop.clock import never
from orl_rollout.openreward.wire import messages_of
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit import one_loop
from tests.kit.families import renderer, tokenizer
from tests.laws.plays import TASK, play

LIMITS = Limits(max_turns=9, context_tokens=1 << 15, rollout_tokens=1 << 18, max_invalid=None)
TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {"x": {"type": "string"}}})


class Call(NamedTuple):
    """A call as a model writes it: its number, and the word that its result repeats.

    `kind` is also "unknown", a tool that does not exist, or "broken", arguments that cannot be read.
    """

    number: int
    word: str
    kind: str = "good"

    @property
    def name(self) -> str:
        return "zz" if self.kind == "unknown" else "look"

    @property
    def arguments(self) -> str:
        return '{"x": w' if self.kind == "broken" else json.dumps({"x": self.word})


class Written(NamedTuple):
    """A format. `call` writes one with its id; calls are between `before` and `after`, joined by `between`.

    `shown` and `called` match a result and a call in a prompt, with the groups `id` and `text`. `ends`: a broken call
    ends the others; `late`: its id is behind what is broken.
    """

    id: Callable[[Call], str]
    call: Callable[[Call, str], str]
    before: str
    between: str
    after: str
    shown: str
    called: str
    ends: bool = False
    late: bool = False

    def action(self, calls: Sequence[Call]) -> str:
        return self.before + self.between.join(self.call(one, self.id(one)) for one in calls) + self.after


def _number(call: Call) -> str:
    return str(call.number)


def _nine(call: Call) -> str:
    return f"x{call.number:08d}"


_MISTRAL = Written(
    _nine,
    lambda call, id_: f'{{"name": "{call.name}", "arguments": {call.arguments}, "id": "{id_}"}}',
    *("[TOOL_CALLS][", ", ", "]</s>"),
    r'\[TOOL_RESULTS\] ?\{"content": (?P<text>.*?), "call_id": "(?P<id>[^"]*)"\}\[/TOOL_RESULTS\]',
    r'"arguments": (?P<text>\{[^}]*\}), "id": "(?P<id>[^"]*)"',
    ends=True,
    late=True,
)
_COHERE = Written(
    _number,
    lambda call, id_: f'{{"tool_call_id": "{id_}", "tool_name": "{call.name}", "parameters": {call.arguments}}}',
    *("<|START_ACTION|>[", ",\n", "]<|END_ACTION|><|END_OF_TURN_TOKEN|>"),
    r'"tool_call_id": "(?P<id>[^"]*)",\s*"results": \{\s*"0": (?P<text>[^\n]*)\n',
    r'"tool_call_id": "(?P<id>[^"]*)", "tool_name": "look", "parameters": (?P<text>\{[^}]*\})',
    ends=True,
)
FORMATS = {
    "kimi_k2": Written(
        lambda call: f"functions.{call.name}:{call.number}",
        lambda call, id_: f"<|tool_call_begin|>{id_}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>",
        *("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|><|im_end|>"),
        r"## Return of (?P<id>[^\n]*)\n(?P<text>.*?)<\|im_end\|>",
        r"<\|tool_call_begin\|>(?P<id>[^<]*)<\|tool_call_argument_begin\|>(?P<text>[^<]*)<\|tool_call_end\|>",
    ),
    "mistral_v0_3": _MISTRAL,
    "mistral_nemo": _MISTRAL,
    "mistral_small_3_2": Written(
        _nine,
        lambda call, id_: f"[TOOL_CALLS]{call.name}[CALL_ID]{id_}[ARGS]{call.arguments}",
        *("", "", "</s>"),
        r"\[TOOL_RESULTS\](?P<id>[^\[]*)\[TOOL_CONTENT\](?P<text>.*?)\[/TOOL_RESULTS\]",
        r"\[CALL_ID\](?P<id>[^\[]*)\[ARGS\](?P<text>\{[^}]*\})",
    ),
    "command_r7b": _COHERE,
    "cohere2_moe": _COHERE._replace(before=f"<|END_THINKING|>{_COHERE.before}"),  # the prompt opens the reasoning
}
every_format = pytest.mark.parametrize("name", FORMATS)
sixth = settings(max_examples=1 + settings().max_examples // 6)  # each of six formats; all have as many as any law


@st.composite
def turns(draw: st.DrawFn, written: Written, *kinds: str) -> list[list[Call]]:
    """Return the calls of some turns. The first of a turn is good."""
    drawn: list[list[Call]] = []
    for turn in range(draw(st.integers(1, 3))):
        calls = [
            Call(number, f"word{turn}{place}", draw(st.sampled_from(kinds)) if place else "good")
            for place, number in enumerate(draw(st.lists(st.integers(0, 12), min_size=1, max_size=4)))
        ]
        broken = [place for place, call in enumerate(calls) if call.kind == "broken"]
        drawn.append(calls[: broken[0] + 1] if broken and written.ends else calls)
    return drawn


def found(pattern: str, shown: str) -> list[tuple[str, str]]:
    """Return the ids in a prompt, each with the word of that call or result; "" is an error."""
    pairs = [(match["id"], re.search("word[0-9]+", match["text"])) for match in re.finditer(pattern, shown, re.DOTALL)]
    return [(id_, word[0] if word else "") for id_, word in pairs]


def check_results(name: str, engine: ScriptedEngine, said: list[list[Call]]) -> None:
    """Check what follows each action: its results, under the ids that the model wrote."""
    written = FORMATS[name]
    for calls, earlier, request in zip(said, engine.requests, engine.requests[1:], strict=False):
        begun = len(earlier.token_ids) + len(earlier.generation.token_ids)
        shown = found(written.shown, tokenizer(name).decode(request.token_ids[begun:]))
        wanted = [(written.id(call), call.word if call.kind == "good" else "") for call in calls]
        known = len(wanted) - (written.late and calls[-1].kind == "broken")
        assert shown[:known] == wanted[:known]
        assert len(shown) == len(wanted)


def check_opening(name: str, ids: Sequence[int], said: list[list[Call]]) -> list[tuple[str, str]]:
    """Check that the calls of an opening and their results have the same ids; return them."""
    shown = tokenizer(name).decode(ids)
    calls, answers = found(FORMATS[name].called, shown), found(FORMATS[name].shown, shown)
    assert calls == answers
    assert [word for _, word in calls] == [call.word for one in said for call in one]
    return calls


def engine_of(name: str, said: list[list[Call]]) -> ScriptedEngine:
    """An engine that writes these calls, and one more action."""
    texts = [FORMATS[name].action(calls) for calls in [*said, [Call(0, "word")]]]
    ids = [tuple(tokenizer(name).encode_joint(text)) for text in texts]
    return ScriptedEngine([Generation(token_ids=one, logprobs=(-0.5,) * len(one), finish_reason="stop") for one in ids])


class Echo(ScriptedSession):
    """Answers a call with its word."""

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(name=call.name, content=(TextBlock(text=call.arguments["x"]),))


@every_format
@sixth
@given(data=st.data(), parallel=st.booleans())
def test_loop_shows_results_under_the_sampled_ids(name: str, data: st.DataObject, *, parallel: bool) -> None:
    """A call that cannot be made keeps its id, and shifts no other."""
    said = data.draw(turns(FORMATS[name], "good", "unknown", "broken"))
    engine = engine_of(name, said)
    limits = structs.replace(LIMITS, max_turns=len(said) + 1, parallel_calls=parallel)
    play(engine, Echo(tools=(TOOL,)), limits, never, renderer(name))
    assert len(engine.requests) == len(said) + 1
    check_results(name, engine, said)


Said = list[Any]  # the conversation, in the form of one API


def chat(said: Said, answer: Any, results: Sequence[tuple[str, str]]) -> dict[str, Any]:
    said += [answer["choices"][0]["message"]] if answer else [{"role": "user", "content": "Play."}]
    said += [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in results]
    tool = {"name": "look", "parameters": TOOL.parameters}
    return {"messages": said, "tools": [{"type": "function", "function": tool}]}


def responses(said: Said, answer: Any, results: Sequence[tuple[str, str]]) -> dict[str, Any]:
    said += answer["output"] if answer else [{"role": "user", "content": "Play."}]
    said += [{"type": "function_call_output", "call_id": id_, "output": text} for id_, text in results]
    return {"input": said, "tools": [{"type": "function", "name": "look", "parameters": TOOL.parameters}]}


def messages(said: Said, answer: Any, results: Sequence[tuple[str, str]]) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in results]
    said += [{"role": "assistant", "content": answer["content"]}] if answer else []
    said += [{"role": "user", "content": blocks or "Play."}]
    return {"messages": said, "tools": [{"name": "look", "input_schema": TOOL.parameters}]}


Form = Callable[[Said, Any, Sequence[tuple[str, str]]], dict[str, Any]]
APIS: list[tuple[ClientApi, Form]] = [(CHAT, chat), (RESPONSES, responses), (ANTHROPIC, messages)]


async def converse(
    name: str, engine: ScriptedEngine, turns: int, random: Random, api: ClientApi, form: Form, does: str = ""
) -> list[int | None]:
    """Play an agent that answers calls in any order. Return which turn each of its turns continues.

    It "edits" its first message before its last request, or "renames" calls, as clients do that want other ids.
    """
    job = RolloutSpec(task=TASK, rollout_id="k", limits=LIMITS)
    said: Said = []
    answer, results = None, list[tuple[str, str]]()
    session = ScriptedSession(tools=(TOOL,))
    async with Episode(job, session=session, renderer=renderer(name), engine=engine) as episode:
        for turn in range(turns + 1):
            body = form(said, answer, results)
            if does == "edits" and turn == turns:
                said[0] = {"role": "user", "content": "Play on."}
            text = json.dumps(body)
            text = re.sub('"call_([0-9a-f]{8})', '"own_\\1', text) if does == "renames" else text
            request = api.read(text.encode(), episode.history)
            reply = await episode.ask(request)
            answer = api.body(reply, request)
            results = [(sent.id, sent.call.arguments["x"]) for sent in reply.calls]
            random.shuffle(results)
        return [turn.continues for turn in episode.trajectory().turns]


@every_format
@sixth
@given(api_and_form=st.sampled_from(APIS), data=st.data(), random=st.randoms(use_true_random=False))
def test_agent_answers_calls_in_any_order(
    name: str, api_and_form: tuple[ClientApi, Form], data: st.DataObject, random: Random
) -> None:
    """The gateway's own ids, which an agent sends back, stand for those that the model sampled."""
    said, does = data.draw(turns(FORMATS[name], "good", "broken")), data.draw(st.sampled_from(["", "renames"]))
    engine = engine_of(name, said)
    assert one_loop.run(converse(name, engine, len(said), random, *api_and_form, does)) == [None] * (len(said) + 1)
    check_results(name, engine, said)


@every_format
@sixth
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_agent_that_edits_shows_calls_and_results_alike(name: str, data: st.DataObject, random: Random) -> None:
    """A conversation that begins again is the chat template's own. Kimi K2 and Mistral show the sampled ids there."""
    drawn = data.draw(turns(FORMATS[name], "good"))
    said = [[call._replace(number=10 * turn + call.number % 10) for call in one] for turn, one in enumerate(drawn)]
    engine = engine_of(name, said)
    one_loop.run(converse(name, engine, len(said), random, CHAT, chat, "edits"))
    calls = check_opening(name, engine.requests[-1].token_ids, said)
    if name not in ("command_r7b", "cohere2_moe"):  # these templates number calls themselves
        assert calls == [(FORMATS[name].id(call), call.word) for one in said for call in one]


@every_format
@sixth
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_opening_of_an_environment_may_answer_in_any_order(name: str, data: st.DataObject, random: Random) -> None:
    said = data.draw(turns(FORMATS[name], "good"))
    conversed: list[dict[str, Any]] = [{"role": "user", "blocks": [{"type": "text", "text": "Play."}]}]
    for turn, one in enumerate(said):
        ids = [f"{turn}-{place}" for place in range(len(one))]
        calls = [
            {"type": "tool_call", "id": id_, "name": "look", "input": {"x": call.word}}
            for id_, call in zip(ids, one, strict=True)
        ]
        results = [
            {"type": "tool_result", "tool_call_id": id_, "blocks": [{"type": "text", "text": call.word}]}
            for id_, call in zip(ids, one, strict=True)
        ]
        random.shuffle(results)
        cut = random.randint(0, len(results))
        conversed += [{"role": "assistant", "blocks": calls}]
        conversed += [{"role": "user", "blocks": part} for part in (results[:cut], results[cut:])]
    check_opening(name, renderer(name).open(messages_of(conversed), (TOOL,)), said)
