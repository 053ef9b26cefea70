"""`orl train miles` and `orl convert miles`: FSDP, Megatron, true on-policy, refusals such as --fully-async.

It imports nothing of miles: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.request import getproxies_environment

from orl_cluster.launch import cluster_trainer
from orl_cluster.launch.command import trainer_defaults
from orl_cluster.launch.command.command import Command, LaunchRequest
from orl_cluster.launch.command.model_shape import model_shape
from orl_cluster.launch.command.trainer_defaults import SUCCESSORS, UNREPLAYED, batch_size, critic_load
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.options import CONTEXT_PARALLEL, LORA, REPLAY, RUN_NAME, Options, cluster_of
from orl_core import ConfigError, TrainerConfig
from orl_core.estimators import OPTION
from orl_rollout.run_folder.contract import Run

from orl_miles.probe import FLASH, OWN_ROUTER, obstacle

MODE = "--true-on-policy-mode"
ATTENTION, ENGINE_ATTENTION = "--attn-implementation", "--sglang-attention-backend"
KERNELS = {"flash_attention_3": "fa3", "triton": "triton"}  # equal kernels: training's, and the engine's
SET: Options = {
    "--deterministic-mode": True,
    "--sglang-enable-deterministic-inference": True,
    "--sglang-rl-on-policy-target": "fsdp",
}
VARIABLES = {
    "NCCL_ALGO": "allreduce:tree",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
RECOMPUTE = "--recompute-logprobs-via-prefill"
Backend = Literal["fsdp", "megatron"]

PACK, MICRO_BATCH = "--use-dynamic-batch-size", "--micro-batch-size"
# miles' parser takes these options with FSDP, which obeys neither.
IGNORED = {
    LORA: "FSDP trains every weight. Use --train-backend megatron",
    RUN_NAME: f"use {SUCCESSORS['fsdp'][RUN_NAME]}",
}
NOT_REINFORCE = (
    "miles ends the job at the first rollout without a trained token, such as one that failed: "
    "use reinforce_plus_plus_baseline, or train with slime"
)
FULLY_ASYNC = "--fully-async"
REPLAY_BY_HAND = f"{UNREPLAYED} {{}}. If your miles can, give {REPLAY} after `--`"
NOT_FULLY_ASYNC = ("--partial-rollout", "--rollout-function-path", "--rollout-all-samples-process-path")
SHAPE = "miles.utils.external_utils.model_args_utils"  # prints the shape in a script that it is given without suffix
V1 = "MILES_USE_LEGACY_ROLLOUT_V1"
LESS_MEMORY: dict[Backend, str] = {
    "fsdp": f"{cluster_trainer.LESS_MEMORY}--sglang-mem-fraction-static 0.5, --fsdp-cpu-offload",
    "megatron": f"{cluster_trainer.MEGATRON_MEMORY}, --train-memory-margin-bytes",
}


def _command_of(installation: Installation, run: Run) -> Command:
    if os.environ.get(V1, "0") != "0":
        raise ConfigError(f"{V1}: orl plays by miles' class API. Unset it")
    features = set(installation.findings.features)
    fsdp = "fsdp" in features or installation.missing  # what a miles has that is not there to be asked
    backend = cluster_of(run.config.trainer).train_backend or ("fsdp" if fsdp else "megatron")
    parallel = backend == "megatron"
    shape = _shape(installation, run.config.trainer) if parallel else []
    request = cluster_trainer.request_of(installation, run, shape, trains_in_parallel=parallel)
    argv, notes = _arguments(request, backend, features, shape)
    queues = trainer_defaults.ONE_QUEUE if parallel else {}  # FSDP overlaps only with several
    exact = VARIABLES if request.value(MODE) is not None else {}
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


def _exact_options(request: LaunchRequest, *, fsdp: bool) -> Options:
    """Return the options that belong to `--true-on-policy-mode`; none without it."""
    if RECOMPUTE in request.names:
        raise ConfigError(f"{RECOMPUTE}: it replaces the logprobs of sampling, on which orl trains. Remove it")
    if request.value(MODE) is None:
        return {}
    if not fsdp:
        raise ConfigError(
            f"{MODE}: with Megatron, miles needs {RECOMPUTE} for it, which replaces the logprobs of sampling. "
            "Use --train-backend fsdp"
        )
    attention = request.value(ATTENTION) or "flash_attention_3"
    if attention not in KERNELS:
        raise ConfigError(f"{ATTENTION} {attention}: {MODE} needs one of {', '.join(KERNELS)}. Leave it out")
    return {**SET, ATTENTION: attention, ENGINE_ATTENTION: KERNELS[attention]}


def _arguments(
    request: LaunchRequest, backend: Backend, features: Collection[str], model_args: Sequence[str]
) -> tuple[list[str], Sequence[str]]:
    """Return miles' arguments, and notes for their user. `model_args` is the shape that Megatron needs.

    `features` are the findings of the probe in the trainer's environment.
    """
    estimator = request.estimator
    if estimator.name == "reinforce_plus_plus":
        raise ConfigError(f"{OPTION} {estimator.name}: {NOT_REINFORCE}")
    refused = trainer_defaults.REFUSED | (IGNORED if backend == "fsdp" else {})
    trainer_defaults.refuse_by_name(request.names, refused, plain=not request.run.config.environments)
    _refuse_fully_async(request)
    if request.run.config.turn_advantages:
        raise ConfigError(
            "miles takes one advantage for each rollout: remove `turn_advantages`, or train with local or slime"
        )
    parallel = backend == "megatron"
    exact = _exact_options(request, fsdp=not parallel)
    if parallel:
        replayed, notes = trainer_defaults.replays(request, able=True, routers=(OWN_ROUTER,))
        training = trainer_defaults.megatron(request, replayed=replayed)
    else:
        training, notes = _fsdp(request, features, exact)
    reference = request.cluster.megatron_ckpt if parallel else None
    ours = trainer_defaults.options(request, reference, {**training, **exact})
    argv = trainer_defaults.assemble(request, {"--train-backend": backend, **ours})
    if request.mixture and REPLAY not in request.names and (not parallel or request.value(LORA) is not None):
        notes = [*notes, REPLAY_BY_HAND.format("with LoRA" if parallel else "with --train-backend fsdp")]
    resumed = critic_load(argv) if estimator.critic and not request.value("--critic-load") else None
    return [*model_args, *argv, *(["--critic-load", str(resumed)] if resumed else [])], notes


def _fsdp(request: LaunchRequest, features: Collection[str], exact: Options) -> tuple[Options, Sequence[str]]:
    """Return the options of FSDP, and notes for their user. `exact` are those of true on-policy training."""
    cluster = request.cluster
    _check_schedule(request)
    if request.value(CONTEXT_PARALLEL) not in (None, "1"):
        raise ConfigError(f"{CONTEXT_PARALLEL}: FSDP splits no sequence. Leave it out, or use --train-backend megatron")
    notes = [
        f"{option} is Megatron's: --train-backend fsdp ignores it"
        for option, value in (("--megatron-ckpt", cluster.megatron_ckpt), ("--model-args", cluster.model_args))
        if value
    ]
    own = str(exact.get(ATTENTION) or request.value(ATTENTION) or "")
    attention = own or next((name for name in FLASH if name in features), "sdpa")
    if exact and features and attention in FLASH and attention not in features:
        notes.append(f"{MODE} needs flash-attn-3, which is not installed with miles")
    common: Options = {ATTENTION: attention, "--gradient-checkpointing": True}
    if "flash" in attention:
        return {**common, **trainer_defaults.packing(request)}, notes
    apart = f"with {ATTENTION} {attention} packed sequences see each other; a flash-attention build keeps them apart"
    sizes = [name for name in (PACK, MICRO_BATCH) if request.value(name) not in (None, "1")]
    if sizes:
        raise ConfigError(f"{sizes[0]}: {apart}: leave it out, then each is trained by itself")
    return {**common, MICRO_BATCH: 1}, [*notes, f"sequences are not packed ({MICRO_BATCH} 1): {apart}"]


def _check_schedule(request: LaunchRequest) -> None:
    """Check the step: FSDP divides it evenly over the GPUs, and knows one datum of each rollout."""
    config, layout = request.run.config, request.layout
    if config.several_rows:
        raise ConfigError(
            f"{config.several_rows} makes several data of a rollout, which miles' FSDP backend does not schedule: "
            "remove it, or use --train-backend megatron"
        )
    gpus = layout.actor * layout.nodes
    batch = batch_size(request)
    if batch % gpus:
        raise ConfigError(
            f"the {batch} rollouts of an update do not divide over {gpus} training GPUs: change --n-samples"
        )


def _refuse_fully_async(request: LaunchRequest) -> None:
    if FULLY_ASYNC not in request.names:
        return
    if not request.cluster.asynchronous:
        raise ConfigError(f"{FULLY_ASYNC} plays while it trains: give --async, --actor-gpus and --rollout-gpus")
    for name in NOT_FULLY_ASYNC:
        if name in request.names:
            raise ConfigError(f"{name}: not together with {FULLY_ASYNC}")
    if request.value("--pause-generation-mode") == "abort":
        raise ConfigError(f"--pause-generation-mode abort: not together with {FULLY_ASYNC}; retract is the default")


TRAINER = cluster_trainer.ClusterTrainer(name="miles", command_of=_command_of, shape_of=_shape)
