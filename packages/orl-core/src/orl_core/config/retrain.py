"""Keys of retrain's configuration, and the place of each in orl's. docs/coming-from.md has the same table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

_HYPER, _OTHERS, _OTHER = "hyperparameters.", "hyperparameters.slime_*", "any other key"
PLACES = {
    "algorithm.name": "`trainer.advantage_estimator`",
    "algorithm.backend": "`trainer.backend`; for `trl` it is `local`",
    "hyperparameters.learning_rate": "`trainer.lr`",
    "hyperparameters.num_iterations": "`trainer.num_rollout`",
    "hyperparameters.rollout_batch_size": "`trainer.rollout_batch_size`",
    "hyperparameters.global_batch_size": "none: it is `trainer.rollout_batch_size` x `trainer.n_samples`",
    "hyperparameters.slime_actor_num_nodes": "`trainer.cluster.actor_nodes`",
    "hyperparameters.slime_actor_num_gpus_per_node": "`trainer.cluster.num_gpus`; not colocated, `actor_gpus` there",
    "hyperparameters.slime_rollout_num_gpus": "none: all GPUs; not colocated, `trainer.cluster.rollout_gpus`",
    "hyperparameters.slime_colocate": "none: true unless `trainer.cluster.actor_gpus` divides the GPUs",
    "hyperparameters.slime_rollout_temperature": "`trainer.temperature`",
    "hyperparameters.slime_rollout_top_p": "`trainer.flags`: `rollout-top-p`",
    "hyperparameters.slime_rollout_max_response_len": "`rollout.turn_tokens`, for each turn",
    "hyperparameters.slime_bf16": "`trainer.flags`: `bf16`; it is on without it",
    "hyperparameters.slime_gradient_checkpointing": "none: it is on; `trainer.flags`: `recompute-granularity`",
    "hyperparameters.slime_sglang_server_concurrency": "`trainer.flags`: `sglang-server-concurrency`",
    "hyperparameters.slime_save_interval": "`trainer.save_interval`",
    "hyperparameters.slime_use_retrain_environment": "none: `environments` are always played",
    "hyperparameters.slime_use_retrain_rewards": "none: rewards come from the environment, or from `reward`",
    _OTHERS: "`trainer.flags`, without `slime_`",
    "reward_setup.step_reward_configs": "the environment's rewards; `environments.NAME.reward_reduction` combines them",
    "reward_setup.rollout_reward_configs": "`reward`, a function; `reward_mode` combines it with the environment's",
    _OTHER: "`trainer.flags`, if the trainer has such an option",
}
_SECTIONS = ("algorithm", "hyperparameters", "reward_setup")


def lines_for(tree: object) -> list[str]:
    """Return a line for each key of retrain in `tree`; none if it is no configuration of retrain."""
    if not isinstance(tree, dict):
        return []
    return [f"`{name}`: {_place(name)}" for name in _names(cast("dict[Any, Any]", tree), "")]


def _names(tree: Mapping[Any, Any], section: str) -> Iterator[str]:
    """Yield the keys of retrain, named as in PLACES."""
    for key, value in tree.items():
        if key in _SECTIONS and isinstance(value, dict):
            yield from _names(cast("dict[Any, Any]", value), f"{key}.")
        elif section or (str(key).startswith("slime_") and key != "slime_path"):  # a key of orl, misplaced
            yield f"{section or _HYPER}{key!s}"[:200]


def _place(name: str) -> str:
    return PLACES.get(name) or PLACES[_OTHERS if name.startswith(f"{_HYPER}slime_") else _OTHER]
