"""Hypothesis strategies for the nouns of orl_core, shared by the tests of all packages."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st
from msgspec import structs
from orl_core.config import TrainOn
from orl_core.messages import Action, FailureKind, Part, Span, TextBlock, ToolCall, ToolResult
from orl_core.task import Task
from orl_core.trajectory import FinishReason, Generation, Job, Limits, StopReason, Trajectory, Turn

token_ids = st.integers(min_value=0, max_value=2**31 - 1)
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
policies = st.builds(
    TrainOn, text=st.booleans(), calls=st.just(True), reasoning=st.booleans(), failed_turns=st.booleans()
)


def _jobs(policies: st.SearchStrategy[TrainOn]) -> st.SearchStrategy[Job]:
    limits = st.builds(Limits, train_timeouts=st.booleans(), train_on=policies)
    return st.builds(Job, task=tasks, key=st.text(min_size=1, max_size=8), limits=limits)


results = st.builds(
    ToolResult,
    name=st.sampled_from(["guess", "look"]),
    content=st.text(max_size=10).map(lambda text: (TextBlock(text=text),)),
    reward=st.none() | modest,
    finished=st.booleans(),
    failure=st.none() | st.sampled_from(FailureKind),
    seconds=st.floats(0, 10),
)


@st.composite
def generations(draw: st.DrawFn, min_size: int = 0) -> Generation:
    ids = draw(st.lists(token_ids, min_size=min_size, max_size=6))
    logprobs = draw(st.lists(st.floats(-50, 0), min_size=len(ids), max_size=len(ids)))
    reason: FinishReason = draw(st.sampled_from(get_args(FinishReason)))
    return Generation(
        ids=tuple(ids),
        logprobs=tuple(logprobs),
        finish_reason=reason,
        weight_version=draw(st.sampled_from(["", "1", "2"])),
    )


actions = st.builds(
    Action,
    text=st.text(max_size=10),
    calls=st.lists(st.builds(ToolCall, name=st.text(max_size=5)), max_size=2).map(tuple),
)


PARTS: tuple[Part, ...] = ("reasoning", "calls")


def _ranges(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """Disjoint, non-empty ranges within `size`, in order."""
    cuts = sorted(draw(st.sets(st.integers(0, size), max_size=4))) if size else []
    return list(zip(cuts[::2], cuts[1::2], strict=False))


@st.composite
def turns(draw: st.DrawFn, *, stripped: bool = False) -> Turn:
    """A turn with any spans; where it is `stripped`, some of its ids may be hidden."""
    turn = Turn(
        observation=tuple(draw(st.lists(token_ids, min_size=1, max_size=6))),
        generations=tuple(draw(st.lists(generations(), max_size=3))),
        action=draw(actions),
        results=tuple(draw(st.lists(results, max_size=3))),
    )
    size = len(turn.action_ids)
    parts = st.sampled_from(PARTS)
    spans = tuple(Span(part=draw(parts), start=start, end=end) for start, end in _ranges(draw, size))
    hidden = tuple(_ranges(draw, len(turn.observation) + size)) if stripped and size else ()
    return structs.replace(turn, spans=draw(st.sampled_from([spans, None])), hidden=hidden)


def _trajectories(*, stripped: bool, policies: st.SearchStrategy[TrainOn]) -> st.SearchStrategy[Trajectory]:
    return st.builds(
        Trajectory,
        job=_jobs(policies),
        turns=st.lists(turns(stripped=stripped), max_size=5).map(tuple),
        stop_reason=st.sampled_from(StopReason),
        error=st.text(max_size=10),
        leaked=st.booleans(),
    )


everything = st.just(TrainOn())
trajectories = _trajectories(stripped=False, policies=everything)  # one datum each, all that was sampled trains
masked_trajectories = _trajectories(stripped=False, policies=policies)
stripped_trajectories = _trajectories(stripped=True, policies=everything | policies)
