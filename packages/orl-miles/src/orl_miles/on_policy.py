"""True on-policy training: the engine and the trainer compute equal logprobs, bit for bit.

`--true-on-policy-mode` after `--`, or in the flags of the file, turns it on. miles needs five more options and three
variables for it, which are set here.
"""

from __future__ import annotations

from orl_cluster.launch.argv import Options
from orl_cluster.launch.command.layout import LaunchRequest
from orl_core.errors import ConfigError

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


def is_on(request: LaunchRequest) -> bool:
    """Tell whether the run asks for true on-policy training."""
    return request.value(MODE) is not None


def options(request: LaunchRequest, *, fsdp: bool) -> Options:
    """Return the options that belong to `--true-on-policy-mode`; none without it."""
    if RECOMPUTE in request.names:
        raise ConfigError(f"{RECOMPUTE}: it replaces the logprobs of sampling, on which orl trains. Remove it")
    if not is_on(request):
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
