"""`orl train miles`: the command line made of miles' own parts, checked and run by `orl_cluster.launch.launch`.

It imports nothing of miles: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.request import getproxies_environment

from orl_cluster.launch import launch
from orl_cluster.launch.layout import layout_of
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError, boundary
from orl_rollout.run_folder.contract import Run
from orl_rollout.signals import children

from orl_miles import args

SHAPE_SECONDS = 120.0  # miles' package is imported for it
LESS_MEMORY = "what lowers memory: --max-tokens-per-gpu, --max-context-len, fewer `max_turns`; after `--`: "
LEVERS: dict[args.Backend, str] = {
    "fsdp": "--sglang-mem-fraction-static 0.5, --fsdp-cpu-offload",
    "megatron": "--context-parallel-size, --sglang-mem-fraction-static 0.5, --optimizer-cpu-offload, "
    "--train-memory-margin-bytes",
}


def plan(run: Run) -> list[str]:
    """The command that `train` would run, to be read or pasted into a shell.

    Raises:
        ConfigError: it cannot be run like this; one line says why.
    """
    return launch.plan_of(command_of(run))


def train(run: Run) -> None:
    """Train to the end.

    Raises:
        ConfigError: the run cannot start; one line says why.
        OrlError: miles ended with an error; names the last one in its log.
    """
    launch.run_to_end(command_of(run), run)


def command_of(run: Run) -> launch.Command:
    """miles' command line for `run`, with what its own environment and parser say of it.

    Raises:
        ConfigError: no miles, an option that nothing knows, or sizes that do not fit together.
    """
    trainer = run.config.trainer
    python, about = launch.located("miles", run)
    root = Path(about.root)
    backend = args.backend_of(trainer, about.features)
    layout = layout_of(trainer, about.gpus, trains_in_parallel=backend == "megatron")
    request = launch.request_of("miles", run, layout)
    features = {*about.features, *([args.LEGACY] if _legacy() else [])}
    shape = model_args(python, trainer, root) if backend == "megatron" else []
    argv, notes = args.arguments(request, backend, features, shape)
    command = launch.Command(
        trainer=launch.Named(
            name="miles",
            unknown=f"miles with --train-backend {backend} has no option {{}}",
            memory=LESS_MEMORY + LEVERS[backend],
        ),
        python=python,
        root=root,
        script="train_async.py" if trainer.asynchronous else "train.py",
        argv=tuple(argv),
        environment={"no_proxy": _no_proxy(), **_connections(backend)},
        layout=layout,
        notes=tuple(notes),
    )
    return launch.checked(command, run)


def model_args(python: str, trainer: TrainerConfig, root: Path) -> list[str]:
    """The model's shape, as miles itself writes it from the file named by `--model-args`: a path or a name of its own.

    Raises:
        ConfigError: none is named, there is no such file, or miles cannot read it.
    """
    script = launch.model_script(trainer, root / "scripts" / "models", ".py").absolute()
    command = [python, "-m", "miles.utils.external_utils.model_args_utils", str(script.with_suffix(""))]
    with boundary(ConfigError, f"--model-args {script}"):
        asked = children.run(command, timeout=SHAPE_SECONDS)
    words = asked.stdout.split()
    if asked.returncode or not words:
        raise ConfigError(f"--model-args {script}: {(asked.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return words


def _legacy() -> bool:
    """Whether miles is told to use its rollout functions of v1."""
    return os.environ.get("MILES_USE_LEGACY_ROLLOUT_V1", "0") != "0"


def _connections(backend: args.Backend) -> dict[str, str]:
    """Megatron overlaps its communication only with one queue; FSDP only with several."""
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if backend == "megatron" else {}


def _no_proxy() -> str:
    """The hosts that miles' HTTP client and Ray have to reach themselves, beside those that the user excepts."""
    excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if excepted.strip() == "*":
        return "*"
    proxied = any(scheme in getproxies_environment() for scheme in ("http", "https", "all"))
    own = os.environ.get("MILES_HOST_IP") or (_address() if proxied else "")
    hosts = ["127.0.0.1", "localhost", os.environ.get("MASTER_ADDR", ""), own, *excepted.split(",")]
    return ",".join(dict.fromkeys(host.strip() for host in hosts if host.strip()))


def _address() -> str:
    """The address by which other machines know this one, where miles' router listens; nothing is sent to find it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("8.8.8.8", 80))
        return str(asked.getsockname()[0])
    return ""
