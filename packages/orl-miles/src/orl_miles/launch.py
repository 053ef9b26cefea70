"""`orl train miles` and `orl convert miles`: the command lines, checked and run by `orl_cluster.launch`.

It imports nothing of miles: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.request import getproxies_environment

from msgspec import structs
from orl_cluster.launch import cluster_trainer
from orl_cluster.launch.command.command import Command
from orl_cluster.launch.command.model_shape import is_mixture, model_shape
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.options import cluster_of
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run

from orl_miles import args
from orl_miles.probe import obstacle

SHAPE = "miles.utils.external_utils.model_args_utils"  # prints the shape in a script that it is given without suffix
V1 = "MILES_USE_LEGACY_ROLLOUT_V1"
LESS_MEMORY: dict[args.Backend, str] = {
    "fsdp": f"{cluster_trainer.LESS_MEMORY}--sglang-mem-fraction-static 0.5, --fsdp-cpu-offload",
    "megatron": f"{cluster_trainer.MEGATRON_MEMORY}, --train-memory-margin-bytes",
}


def _command_of(installation: Installation, run: Run) -> Command:
    if os.environ.get(V1, "0") != "0":
        raise ConfigError(f"{V1}: orl plays by miles' class API. Unset it")
    features = set(installation.findings.features)
    fsdp = "fsdp" in features or installation.missing  # what a miles has that is not there to be asked
    backend = cluster_of(run.config.trainer).train_backend or ("fsdp" if fsdp else "megatron")
    request = cluster_trainer.request_of(installation, run, trains_in_parallel=backend == "megatron")
    shape = _shape(installation, request.trainer) if backend == "megatron" else []
    request = structs.replace(request, mixture=is_mixture(request, shape))
    argv, notes = args.arguments(request, backend, features, shape)
    # Megatron overlaps its communication only with one queue; FSDP only with several.
    queues = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if backend == "megatron" else {}
    exact = args.VARIABLES if args.is_exact(request) else {}
    return Command(
        request=request,
        argv=tuple(argv),
        environment={"no_proxy": _no_proxy(), **queues, **exact},
        unknown=f"miles with --train-backend {backend} has no option {{}}",
        memory=LESS_MEMORY[backend],
        problems=tuple(filter(None, [obstacle(argv)])) if installation.missing else (),
        notes=tuple(notes),
    )


def _shape(installation: Installation, trainer: TrainerConfig) -> list[str]:
    def printing(script: Path) -> list[str]:
        return [installation.python, "-m", SHAPE, str(script.with_suffix(""))]

    return model_shape(installation, trainer, ".py", printing)


def _no_proxy() -> str:
    """Return the hosts that miles' HTTP client and Ray reach without a proxy: ours, and those of the user."""
    excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if excepted.strip() == "*":
        return "*"
    proxied = any(scheme in getproxies_environment() for scheme in ("http", "https", "all"))
    own = os.environ.get("MILES_HOST_IP") or (_address() if proxied else "")
    hosts = ["127.0.0.1", "localhost", os.environ.get("MASTER_ADDR", ""), own, *excepted.split(",")]
    return ",".join(dict.fromkeys(host.strip() for host in hosts if host.strip()))


def _address() -> str:
    """Return the address of this machine on its network, where miles' router listens. Nothing is sent to find it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("8.8.8.8", 80))
        return str(probe.getsockname()[0])
    return ""


TRAINER = cluster_trainer.ClusterTrainer(name="miles", command_of=_command_of, shape_of=_shape)
