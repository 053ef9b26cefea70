"""Rollouts of several turns that are paid turn by turn, as one row or as several."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec import structs
from orl_core.config import EnvironmentConfig
from orl_core.messages import Action, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_rollout.results.outcome import Outcome, outcome_of

from tests.kit.secrets import NO_SECRETS

JOB = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
Turns = list[tuple[list[int], list[int], float]]  # shown, sampled, paid
turns_of = st.lists(
    st.tuples(
        st.lists(st.integers(1, 90), min_size=1, max_size=4),
        st.lists(st.integers(1, 90), min_size=1, max_size=4),
        st.sampled_from([0.0, 0.25, 1.0]),
    ),
    min_size=1,
    max_size=4,
)


def outcome(turns: Turns, stop: StopReason = StopReason.FINISHED) -> Outcome:
    """A rollout of these turns."""
    made = tuple(
        Turn(
            observation=tuple(shown),
            generations=(
                Generation(
                    token_ids=tuple(ids),
                    logprobs=tuple(-(at + 1) / 8 - place / 64 for place in range(len(ids))),
                    finish_reason="stop",
                ),
            ),
            action=Action(),
            results=(ToolResult(name="act", reward=paid),),
        )
        for at, (shown, ids, paid) in enumerate(turns)
    )
    trajectory = Trajectory(job=JOB, turns=made, stop_reason=stop, error="x" if stop is StopReason.ERROR else "")
    return outcome_of(trajectory, EnvironmentConfig(reward_reduction="sum"), NO_SECRETS)


def split(one: Outcome) -> Outcome:
    """The same rollout with a row for each turn: its prompt is what came before."""
    (whole,) = one.datums
    starts = (0, *(end + 1 for end in whole.ends[:-1]))
    rows = []
    for at, (start, end) in enumerate(zip(starts, whole.ends, strict=True)):
        first = next(place for place in range(start, end + 1) if whole.sampled[place])
        cut = slice(first, end + 1)
        columns = {name: getattr(whole, name)[cut] for name in ("response", "sampled", "loss_mask", "logprobs")}
        rows.append(
            structs.replace(
                whole,
                prompt=(*whole.prompt, *whole.response[:first]),
                generations=whole.generations[at : at + 1],
                rewards=tuple((place - first, paid) for place, paid in whole.rewards if start <= place <= end),
                ends=(end - first,),
                **columns,
            )
        )
    return structs.replace(one, datums=tuple(rows))
