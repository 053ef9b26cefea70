"""PPO's critic on a cluster: a second model of the actor's shape, saved next to the actor's checkpoint.

Trainers start it from the actor's `--load`. When a run is resumed, it continues from its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orl_core.errors import ConfigError
from orl_rollout.run_folder.checkpoint import trained_number

from orl_cluster.launch.argv import value_of


def critic_folder(checkpoint: str) -> Path:
    """Return the folder of the critic that belongs to the actor's `checkpoint`."""
    actor = Path(checkpoint).absolute()
    return actor.with_name(f"{actor.name}_critic")


def critic_load(argv: Sequence[str]) -> Path | None:
    """Return the critic's checkpoint to resume from; None for a run that starts at step 0.

    Raises:
        ConfigError: the actor is resumed, and its critic is not there.
    """
    actor = value_of(argv, "--load") or ""
    if not actor or trained_number(Path(actor)) is None:
        return None
    critic = critic_folder(actor)
    if trained_number(critic) is None:
        raise ConfigError(
            f"--load {actor}: PPO continues from an actor and its critic, and no critic is in {critic}; "
            "train with another --advantage-estimator, or start a new run from --megatron-ckpt"
        )
    return critic
