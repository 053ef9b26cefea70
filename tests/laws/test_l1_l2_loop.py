"""L1 and L2 through the loop: whatever engine, environment and model do, there is a Trajectory, and it is exact.

Actions are random ids of the whole vocabulary, control ids and non-canonical streams included, cut anywhere, or calls;
engine and environment fail, answer nonsense or text that spells control strings, at any moment. Reasoning is kept or
stripped, written by the model from its first tag on or opened by the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.datum import Datum, to_data
from orl_core.errors import EngineError, SessionError
from orl_core.limits import Limits
from orl_core.messages import FailureKind, ImageBlock, TextBlock, ToolResult, ToolSpec, text_message
from orl_core.render import Renderer
from orl_core.trajectory import Generation, StopReason, Trajectory
from orl_rollout.tokenizer.tokenizer import HFTokenizer
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.tokenizers import build, tokenizer
from tests.laws.checks import check_data, check_shown
from tests.laws.plays import RENDERER, play

TOKENIZER = tokenizer()
OPENS_THINK = (Path(__file__).parents[1] / "golden" / "opens_think.jinja").read_text(encoding="utf-8")
INSIDE = Renderer(HFTokenizer(build(OPENS_THINK)), system_prompt_template="{tools}")
THINK, THOUGHT = (TOKENIZER.added_tokens[text] for text in ("<think>", "</think>"))
CONTROL = tuple(TOKENIZER.added_tokens)
CALL = tuple(TOKENIZER.encode_joint('<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call><|im_end|>'))
SIZE = max(TOKENIZER.added_tokens.values()) + 1

hostile = st.lists(st.sampled_from(CONTROL) | st.text(max_size=6) | st.just("\ud800"), max_size=5).map("".join)
blocks = st.one_of(
    st.builds(TextBlock, text=hostile),
    st.builds(TextBlock, text=st.just("long " * 300)),
    st.just(ImageBlock(data="", mime_type="image/png")),
)
answers = st.one_of(
    st.builds(
        ToolResult,
        name=hostile,
        content=st.lists(blocks, max_size=2).map(tuple),
        reward=st.none() | st.floats(-1, 1),
        finished=st.sampled_from([False, False, False, True]),
        failure=st.none() | st.sampled_from(FailureKind),
    ),
    st.sampled_from(
        [SessionError("gone"), OSError("reset"), ValueError("not enough values to unpack"), TimeoutError()]
    ),
)


thought = st.lists(st.sampled_from([THINK, THOUGHT]) | st.integers(0, SIZE - 1), max_size=4)
thoughts = st.builds(
    lambda opens, inside, closes: (*opens, *inside, *closes),
    st.sampled_from([(), (THINK,)]),
    thought,
    st.sampled_from([(THOUGHT,), (THOUGHT, *TOKENIZER.encode(["\n\n"])[0]), ()]),
) | st.just(())


@st.composite
def scripted(draw: st.DrawFn) -> Callable[[Sequence[int], Mapping[str, Any]], Generation] | Exception:
    """An engine's step: an honest sample of any ids within the budget, or a fault."""
    kind = draw(st.sampled_from(["call", "call", "call", "call", "random", "random", "abort", "error", "too many"]))
    if kind == "error":
        return draw(st.sampled_from([EngineError("HTTP 500"), OSError("reset"), KeyError("meta_info")]))
    ids = CALL if kind in ("call", "too many") else tuple(draw(st.lists(st.integers(0, SIZE - 1), max_size=8)))
    if kind == "call":
        ids = (*draw(thoughts), *ids)
    logprob = draw(st.floats(-30, 0))

    def generate(_: Sequence[int], sampling: Mapping[str, Any]) -> Generation:
        budget = sampling["max_new_tokens"]
        kept = ids * 99 if kind == "too many" else ids[:budget]
        reason = "abort" if kind == "abort" else "length" if len(kept) == budget else "stop"
        return Generation(token_ids=kept, logprobs=(logprob,) * len(kept), finish_reason=reason)  # type: ignore[arg-type]

    return generate


renderers = st.sampled_from([RENDERER, INSIDE])


def check_shown_to(engine: ScriptedEngine, data: tuple[Datum, ...]) -> None:
    """Law L1 for what this engine saw, unless its last answer was refused for its length."""
    answered = [request for request in engine.requests if request.generation.token_ids]
    if not answered or len(answered[-1].generation.token_ids) > answered[-1].sampling["max_new_tokens"]:
        return
    check_shown([(request.token_ids, request.generation) for request in answered], data)


limits = st.builds(
    Limits,
    max_turns=st.integers(1, 4),
    turn_tokens=st.integers(1, 60),
    rollout_tokens=st.integers(1, 120),
    context_tokens=st.integers(1, 400),
    tool_result_tokens=st.integers(1, 40),
    max_nudges=st.none() | st.integers(0, 2),
    max_invalid=st.none() | st.integers(1, 3),
    retry_cut_actions=st.booleans(),
    parallel_calls=st.booleans(),
    train_timeouts=st.booleans(),
    strip_reasoning=st.booleans(),
)


def check_stripped(trajectory: Trajectory, data: tuple[Datum, ...], renderer: Renderer) -> None:
    """Stripped reasoning of an earlier turn is never shown; a turn without any continues its datum."""
    turns = trajectory.turns
    if not trajectory.job.limits.strip_reasoning:
        assert not any(turn.stripped_spans for turn in turns)
        return
    for turn in turns[:-1]:
        hidden = {place for start, end in turn.stripped_spans for place in range(start, end)}
        calls = {place for span in turn.spans or () if span.part == "calls" for place in range(span.start, span.end)}
        for place, token in enumerate(turn.action_ids):
            assert token != THINK or place in calls or place + len(turn.observation) in hidden
        assert bool(hidden) == any(span.part == "reasoning" for span in turn.spans or ())
        if renderer is INSIDE:
            assert all(place in hidden for place, token in enumerate(turn.observation) if token == THINK)
    assert len(data) <= 1 + sum(bool(turn.stripped_spans) for turn in turns[:-1])


@given(
    steps=st.lists(scripted(), min_size=1, max_size=6),
    script=st.lists(answers, max_size=8),
    limits=limits,
    aborts_after=st.none() | st.integers(0, 6),
    first=hostile,
    in_text=st.booleans(),
    broken=st.sampled_from([None, None, None, None, OSError("refused")]),
    renderer=renderers,
)
def test_a_rollout_is_total_and_exact(steps, script, limits, aborts_after, first, in_text, broken, renderer):
    reads = 0

    def stopped() -> bool:
        nonlocal reads
        reads += 1
        return aborts_after is not None and reads > aborts_after

    engine = ScriptedEngine([*steps, EngineError("the script is over")])
    session = ScriptedSession(
        [*script, SessionError("the script is over"), SessionError("the script is over"), SessionError("again")],
        messages=(text_message("user", first),),
        tools=(ToolSpec(name="act"),),
        accepts_text_answer=in_text,
        fails_to_open=broken,
    )
    trajectory = play(engine, session, limits, stopped, renderer)
    data = to_data(trajectory, reward=0.0)
    assert session.closed == 1
    assert (trajectory.stop_reason is StopReason.ERROR) == bool(trajectory.error)
    check_data(trajectory, data)
    check_shown_to(engine, data)
    check_stripped(trajectory, data, renderer)
    if trajectory.stop_reason in (StopReason.ERROR, StopReason.ABORTED):
        assert not any(any(datum.loss_mask) for datum in data)
    assert len(trajectory.turns) <= limits.max_turns


HALVES = tuple(TOKENIZER.encode(["😀漢"])[0][1:])  # the first character without its first byte


@given(
    said=st.lists(st.integers(0, SIZE - 1), max_size=4),
    opens=st.sampled_from([(), (THINK,)]),
    inside=st.integers(2, len(CALL) - 1),
    renderer=renderers,
)
def test_action_cut_at_any_id_trains_and_is_not_acted_on(said, opens, inside, renderer):
    """Of the call, which is always the same, one place in each example."""
    ids = (*opens, *HALVES, *said, *CALL)
    begins = len(ids) - len(CALL)
    for cut in (*range(1, begins + 2), begins + inside):
        if ids[cut - 1] in renderer.stop_ids:
            continue
        generation = Generation(token_ids=ids[:cut], logprobs=(-0.5,) * cut, finish_reason="length")
        engine, session = ScriptedEngine([generation]), ScriptedSession()
        trajectory = play(engine, session, Limits(turn_tokens=cut, retry_cut_actions=False), lambda: False, renderer)
        (datum,) = data = to_data(trajectory, reward=0.0)
        assert (trajectory.stop_reason, session.calls, session.closed) == (StopReason.MAX_TOKENS, [], 1)
        assert (datum.response, datum.loss_mask) == (ids[:cut], (1,) * cut)
        check_data(trajectory, data)
        check_shown_to(engine, data)


def test_reasoning_stripped_otherwise_than_recorded_is_seen():
    """The checks above fail when what was hidden is recorded one id short, or not at all."""
    thinking = (THINK, *TOKENIZER.encode(["Hm."])[0], THOUGHT, *CALL)
    generate = Generation(token_ids=thinking, logprobs=(-1.0,) * len(thinking), finish_reason="stop")
    engine = ScriptedEngine([generate, generate])
    session = ScriptedSession([ToolResult(name="act"), ToolResult(name="act", finished=True)])
    trajectory = play(engine, session, Limits(strip_reasoning=True), lambda: False)
    first, last = trajectory.turns
    ((start, end),) = first.stripped_spans
    check_shown_to(engine, to_data(trajectory, reward=0.0))
    for hidden in (((start, end - 1),), ()):
        forged = structs.replace(trajectory, turns=(structs.replace(first, stripped_spans=hidden), last))
        with pytest.raises(AssertionError):
            check_shown_to(engine, to_data(forged, reward=0.0))
