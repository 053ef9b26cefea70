"""The algorithms of this trainer: the table that `trainer.advantage_estimator` names a row of. No torch here.

An algorithm is four choices: how rewards become advantages, whether an id or a rollout has the ratio of both policies,
how the ratio is bounded, and over what the loss is a mean. docs/how-it-works.md has the names of TRL and slime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from orl_core.errors import ConfigError
from orl_core.estimators import ESTIMATORS, OPTION, Estimator


class Algorithm(Struct, frozen=True, kw_only=True):
    """One way to make a loss of advantages.

    `ratio` is that of each id, or of the whole rollout (the geometric mean over its ids). It counts between 1 - `low`
    and 1 + `high`; a `cap` (CISPO) weighs the logprob by the ratio up to it. The loss is a mean over the `ids` of the
    step, over its `rollouts` (each a mean over its ids), or a sum divided by rollouts times the budget of a turn
    (`constant`).
    """

    advantage: Estimator
    ratio: Literal["token", "sequence"] = "token"
    low: float = 0.2
    high: float = 0.2
    cap: float | None = None
    mean: Literal["ids", "rollouts", "constant"] = "ids"


GROUP = ESTIMATORS["grpo"]
ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(advantage=GROUP),
    "gspo": Algorithm(advantage=GROUP, ratio="sequence", low=3e-4, high=4e-4, mean="rollouts"),  # arXiv 2507.18071
    "cispo": Algorithm(advantage=GROUP, cap=5.0),  # arXiv 2506.13585; the cap is that of arXiv 2510.13786
    "dr_grpo": Algorithm(advantage=Estimator(name="dr_grpo", center=True, turns=True), mean="constant"),
}


def algorithm_named(name: str) -> Algorithm:
    """Return the algorithm `name`.

    Raises:
        ConfigError: the table lacks it.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"{OPTION} {name}: local has {', '.join(ALGORITHMS)}. Use one, or train with slime or miles")
    return ALGORITHMS[name]
