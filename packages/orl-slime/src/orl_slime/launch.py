"""`orl train slime`: slime's command line, checked and run by `orl_cluster.launch.launch`.

It imports nothing of slime: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

from orl_cluster.launch import launch, trainer_defaults
from orl_cluster.launch.layout import Installation
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run

PRINT_SHAPE = 'source "$1" >/dev/null && printf "%s\\0" "${MODEL_ARGS[@]}"'


def _command_of(installation: Installation, run: Run) -> launch.Command:
    """Return slime's command line.

    Raises:
        ConfigError: an option that orl owns or that slime no longer has, or sizes that do not fit together.
    """
    request = launch.request_of(installation, run)
    shape = launch.model_shape(
        request, ".sh", lambda script: ["bash", "-c", PRINT_SHAPE, "bash", str(script)], separator="\0"
    )
    if request.trainer.train_backend == "fsdp":
        raise ConfigError(
            "--train-backend fsdp: slime trains with Megatron alone since 0.2.3; leave it out, or train with miles"
        )
    trainer_defaults.refuse_by_name("slime", request.names, trainer_defaults.MEGATRON_GONE)
    training = trainer_defaults.megatron(request)
    ours = trainer_defaults.options(request, request.trainer.megatron_ckpt, training, parallel=True)
    return launch.Command(
        request=request,
        argv=(*shape, *trainer_defaults.assemble(request, ours)),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        unknown="slime, Megatron and SGLang have no option {}, which slime would ignore",
        memory=launch.MEGATRON_MEMORY,
    )


_TRAINER = launch.ClusterTrainer(name="slime", command_of=_command_of)
plan, train = _TRAINER.plan, _TRAINER.train
