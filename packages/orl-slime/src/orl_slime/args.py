"""From the configuration to slime's command line. No file is read, no process asked, nothing of slime imported.

What slime has in common with other trainers of a cluster stands in `orl_cluster.launch.trainer_defaults`; here is what
is its own: its hooks, and what it no longer has.
"""

from __future__ import annotations

from collections.abc import Sequence

from orl_cluster.launch import trainer_defaults
from orl_cluster.launch.argv import Options
from orl_cluster.launch.layout import Request
from orl_core.errors import ConfigError

PROJECT = "slime-openreward"  # on W&B
HOOKS: Options = {
    "--custom-generate-function-path": ("orl_slime.generate.generate",),
    "--custom-rm-path": ("orl_slime.reward.reward",),
    "--custom-reward-post-process-path": ("orl_slime.reward.post_process",),
    "--custom-rollout-log-function-path": ("orl_slime.log.log_rollout",),
    "--custom-eval-rollout-log-function-path": ("orl_slime.log.log_eval",),
}
# Options that slime once had, and what replaces them.
GONE = {
    "--gradient-checkpointing": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1, "
    "which are on already",
    **trainer_defaults.GONE,
}


def arguments(request: Request, model_args: Sequence[str]) -> list[str]:
    """slime's arguments. `model_args` is the shape of the model.

    Raises:
        ConfigError: an option that orl owns or that slime no longer has, or sizes that do not fit together.
    """
    trainer = request.trainer
    if trainer.train_backend == "fsdp":
        raise ConfigError(
            "--train-backend fsdp: slime trains with Megatron alone since 0.2.3; leave it out, or train with miles"
        )
    trainer_defaults.refuse_by_name("slime", request.names, GONE)
    reference = trainer_defaults.absolute(trainer.megatron_ckpt or trainer.model or trainer_defaults.MODEL)
    ours: Options = {
        **trainer_defaults.cluster(request.layout),
        **trainer_defaults.checkpoints(trainer, request.files, reference),
        **trainer_defaults.data(request.config, request.files, HOOKS),
        **trainer_defaults.rollouts(request, parallel=True),
        **trainer_defaults.learning(trainer),
        **trainer_defaults.megatron(trainer, request.layout),
        **(trainer_defaults.tracking(trainer, PROJECT) if request.tracked else {}),
    }
    return [*model_args, *trainer_defaults.assemble(request, ours)]
