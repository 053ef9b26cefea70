"""`orl train slime`: the command line made of slime's own parts, checked and run by `orl_cluster.launch.launch`.

It imports nothing of slime: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

from orl_cluster.launch import launch
from orl_cluster.launch.layout import Installation
from orl_rollout.run_folder.contract import Run

from orl_slime import args

PRINT_SHAPE = 'source "$1" >/dev/null && printf "%s\\0" "${MODEL_ARGS[@]}"'


def _command_of(installation: Installation, run: Run) -> launch.Command:
    request = launch.request_of(installation, run)
    shape = launch.model_shape(
        request, ".sh", lambda script: ["bash", "-c", PRINT_SHAPE, "bash", str(script)], separator="\0"
    )
    return launch.Command(
        request=request,
        argv=tuple(args.arguments(request, shape)),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        unknown="slime, Megatron and SGLang have no option {}, which slime would ignore",
        memory=launch.MEGATRON_MEMORY,
    )


_TRAINER = launch.ClusterTrainer(name="slime", command_of=_command_of)
plan, train = _TRAINER.plan, _TRAINER.train
