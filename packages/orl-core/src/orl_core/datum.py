"""A datum: what trains, before a trainer's own Sample. Built from a trajectory by concatenation, and only so.

Law L1 holds by construction: `prompt + response` is the observations and actions in order, up to the last id that the
engine returned; `sampled` marks the engine's ids, each with its own logprob. Nothing is tokenized or rendered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from orl_core.trajectory import Trajectory


class Datum(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of training data. P = len(prompt), R = len(response).

    `response`, `sampled`, `loss_mask` and `logprobs` have length R; `sampled` and `loss_mask` hold 0 or 1 with
    `loss_mask <= sampled`; `logprobs` are the engine's at the sampled places and 0.0 elsewhere. `weight_versions` and
    `extras` have one member for each generation.
    """

    task_key: str
    rollout_id: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    sampled: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[str, ...] = ()
    reward: float = 0.0
    trains: bool = True
    extras: tuple[dict[str, Any], ...] = field(default=())


def to_data(trajectory: Trajectory, *, reward: float) -> tuple[Datum, ...]:
    """The data of `trajectory`: one datum, or none where the engine never returned an id.

    A trajectory that does not train gives a well-formed datum whose `loss_mask` is all 0.
    """
    generations = [generation for turn in trajectory.turns for generation in turn.generations]
    if not any(generation.ids for generation in generations):
        return ()
    prompt = trajectory.turns[0].observation
    response: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    end = 0
    for position, turn in enumerate(trajectory.turns):
        if position:
            response.extend(turn.observation)
            sampled.extend([0] * len(turn.observation))
            logprobs.extend([0.0] * len(turn.observation))
        for generation in turn.generations:
            response.extend(generation.ids)
            sampled.extend([1] * len(generation.ids))
            logprobs.extend(generation.logprobs)
            if generation.ids:
                end = len(response)
    trains = trajectory.trains
    mask = tuple(sampled[:end])
    return (
        Datum(
            task_key=trajectory.job.task.key,
            rollout_id=trajectory.job.key,
            prompt=prompt,
            response=tuple(response[:end]),
            sampled=mask,
            loss_mask=mask if trains else (0,) * end,
            logprobs=tuple(logprobs[:end]),
            weight_versions=tuple(generation.weight_version for generation in generations),
            reward=reward,
            trains=trains,
            extras=tuple(generation.extras for generation in generations),
        ),
    )
