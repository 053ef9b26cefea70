"""The advantage estimators of trainers, and what orl does for each.

The launch, the hooks, the viewer and `orl_rollout.training` read this one table. An estimator that it lacks would train
on raw rewards without an error, so it is refused.
"""

from __future__ import annotations

from msgspec import Struct

from orl_core.errors import ConfigError

OPTION = "--advantage-estimator"


class Estimator(Struct, frozen=True, kw_only=True):
    """An advantage estimator.

    Our hook subtracts the mean of a group (`center`) and divides by its deviation (`scale`). The trainer whitens the
    advantages of a batch (`whiten`), trains a critic (`critic`), or trains on given advantages of single turns
    (`turns`).
    """

    name: str
    center: bool = False
    scale: bool = False
    whiten: bool = False
    critic: bool = False
    turns: bool = False


ESTIMATORS = {
    one.name: one
    for one in (
        Estimator(name="grpo", center=True, scale=True, turns=True),
        Estimator(name="gspo", center=True, scale=True, turns=True),
        Estimator(name="cispo", center=True, scale=True, turns=True),
        Estimator(name="reinforce_plus_plus", whiten=True),
        Estimator(name="reinforce_plus_plus_baseline", center=True, whiten=True),
        Estimator(name="ppo", whiten=True, critic=True),
    )
}


def estimator_named(name: str) -> Estimator:
    """Return the estimator `name`.

    Raises:
        ConfigError: the table lacks it.
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"{OPTION} {name}: orl does not know this estimator. Use one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
