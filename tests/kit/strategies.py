"""Hypothesis strategies for the nouns of orl_core, shared by the tests of all packages."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st
from msgspec import structs
from orl_core.limits import Limits, TrainOn
from orl_core.messages import Action, FailureKind, Part, Span, TextBlock, ToolCall, ToolResult, ToolSpec
from orl_core.task import Task
from orl_core.trajectory import ROOT, FinishReason, Generation, RolloutSpec, StopReason, Trajectory, Turn

finite = st.floats(allow_nan=False, allow_infinity=False)
modest = st.floats(min_value=-1e6, max_value=1e6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text(max_size=10),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
tasks = st.builds(
    Task,
    env_name=st.sampled_from(["A/One", "B/Two"]),
    deployment_name=st.just("d"),
    split=st.sampled_from(["train", "test"]),
    index=st.none() | st.integers(0, 1000),
    task_spec=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
SOME_TASKS = (
    Task(env_name="A/One", deployment_name="d", index=0),
    Task(env_name="B/Two", deployment_name="d", split="test", task_spec={"n": [1.5, None, {"é": "\x00"}]}),
)
# Texts from outside, short: most of them from a list, because what a text holds is drawn letter by letter.
said = st.sampled_from(("", "a", " \n", "é😀", "\x00", "<|im_end|>", '<tool_call>{"name": "a"}</tool_call>')) | st.text(
    max_size=10
)
names = st.sampled_from(("k", "look", "\x00", "é <|im_end|>")) | st.text(min_size=1, max_size=8)
parts = st.sets(st.sampled_from(("text", "calls", "reasoning")), max_size=2)  # that do not train
policies = st.builds(
    lambda off, failed: TrainOn(**dict.fromkeys(off, False), failed_turns=failed), parts, st.booleans()
)


def _jobs(policies: st.SearchStrategy[TrainOn]) -> st.SearchStrategy[RolloutSpec]:
    limits = st.builds(Limits, train_timeouts=st.booleans(), train_on=policies)
    return st.builds(RolloutSpec, task=st.sampled_from(SOME_TASKS), rollout_id=names, limits=limits)


# Drawn as bytes: one draw for many ids. The last one is the largest that an engine may return.
some_ids = st.binary(max_size=6).map(lambda drawn: tuple(2**31 - 1 if byte == 255 else byte for byte in drawn))
RESULTS = tuple(
    ToolResult(
        name=name,
        content=(TextBlock(text=text),),
        reward=reward,
        finished=reward == 1.0,
        failure=failure,
        metadata={} if failure else {"said": [text, None]},
    )
    for name, text in (("guess", "no"), ("look", "é😀\x00<|im_end|>"))
    for reward in (None, 0.0, 1.0, -2.5e5)
    for failure in (None, FailureKind.INVALID_ARGUMENTS)
)


TOOLS = (ToolSpec(name="guess", description="Guess é."), ToolSpec(name="look"))


def _generation(ids: tuple[int, ...], first: int, reason: FinishReason, version: str) -> Generation:
    """Logprobs are all different, so that a place cannot pass for another."""
    logprobs = tuple(first / -7 - place for place in range(len(ids)))
    return Generation(token_ids=ids, logprobs=logprobs, finish_reason=reason, weight_version=version)


reasons = st.sampled_from(get_args(FinishReason))
generations = st.builds(_generation, some_ids, st.integers(0, 99), reasons, st.sampled_from(["", "1", "2"]))
ACTIONS = (
    Action(),
    Action(text="Well. \x00é", reasoning="<think>"),
    Action(text="<|im_end|>", calls=(ToolCall(name="look", arguments={"x": ["😀", 1.5, None]}), ToolCall(name="é"))),
)


PARTS: tuple[Part, ...] = ("reasoning", "calls")


def _ranges(drawn: bytes, size: int) -> list[tuple[int, int]]:
    """Disjoint, non-empty ranges within `size`, in order."""
    cuts = sorted({byte % (size + 1) for byte in drawn})
    return list(zip(cuts[::2], cuts[1::2], strict=False))


PIECES = st.tuples(
    some_ids,
    st.lists(generations, max_size=3).map(tuple),
    st.sampled_from(ACTIONS),
    st.lists(st.sampled_from(RESULTS), max_size=3).map(tuple),
    st.sampled_from(("", "Go on.")),
    st.none() | st.binary(max_size=5),  # cuts of spans, if there are any
    st.binary(max_size=4),  # and of hidden ids
)


@st.composite
def turns(draw: st.DrawFn, *, stripped: bool = False) -> Turn:
    """Draw a turn with any spans; if `stripped`, some of its ids may be hidden."""
    seen, generations, action, results, nudge, drawn, hiding = draw(PIECES)
    turn = Turn(observation=seen or (0,), generations=generations, action=action, results=results, nudge=nudge)
    size = len(turn.action_ids)
    spans = tuple(
        Span(part=PARTS[(start + end) % 2], start=start, end=end) for start, end in _ranges(drawn or b"", size)
    )
    hidden = _ranges(hiding, len(turn.observation) + size) if stripped and size else ()
    return structs.replace(turn, spans=None if drawn is None else spans, stripped_spans=tuple(hidden))


def _trajectories(*, stripped: bool, policies: st.SearchStrategy[TrainOn]) -> st.SearchStrategy[Trajectory]:
    return st.builds(
        Trajectory,
        job=_jobs(policies),
        tools=st.sampled_from(((), TOOLS)),
        turns=st.lists(turns(stripped=stripped), max_size=5).map(tuple),
        stop_reason=st.sampled_from((StopReason.FINISHED, *StopReason)),
        error=said,
        contains_secret=st.sampled_from((False, False, False, True)),
    )


everything = st.just(TrainOn())
trajectories = _trajectories(stripped=False, policies=everything)  # one datum each, all that was sampled trains
masked_trajectories = _trajectories(stripped=False, policies=everything | policies)
stripped_trajectories = _trajectories(stripped=True, policies=everything | policies)
linear = _trajectories(stripped=True, policies=everything)


@st.composite
def _trees(draw: st.DrawFn) -> Trajectory:
    """A trajectory whose turns continue any turn before them, or none; each generation is an object of its own."""
    drawn = draw(linear)
    branching = [
        structs.replace(
            turn,
            generations=tuple(structs.replace(generation) for generation in turn.generations),
            continues=draw(st.none() | st.integers(ROOT, index - 1)),
        )
        for index, turn in enumerate(drawn.turns)
    ]
    return structs.replace(drawn, turns=tuple(branching))


trees = _trees()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
