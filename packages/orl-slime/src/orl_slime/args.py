"""From the configuration to slime's command line. No file is read, no process asked, nothing of slime imported.

`orl_cluster.launch.trainer_defaults` has the options that slime shares with other trainers.
"""

from __future__ import annotations

from collections.abc import Sequence

from orl_cluster.launch import trainer_defaults
from orl_cluster.launch.layout import Request
from orl_core.errors import ConfigError


def arguments(request: Request, model_args: Sequence[str]) -> list[str]:
    """Return slime's arguments. `model_args` is the shape of the model.

    Raises:
        ConfigError: an option that orl owns or that slime no longer has, or sizes that do not fit together.
    """
    trainer = request.trainer
    if trainer.train_backend == "fsdp":
        raise ConfigError(
            "--train-backend fsdp: slime trains with Megatron alone since 0.2.3; leave it out, or train with miles"
        )
    trainer_defaults.refuse_by_name("slime", request.names, trainer_defaults.MEGATRON_GONE)
    training = trainer_defaults.megatron(request)
    ours = trainer_defaults.options(request, trainer.megatron_ckpt, training, parallel=True)
    return [*model_args, *trainer_defaults.assemble(request, ours)]
