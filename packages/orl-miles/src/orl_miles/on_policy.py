"""True on-policy training: the engine and the trainer compute equal logprobs, bit for bit.

`--true-on-policy-mode` after `--`, or in the flags of the file, turns it on. miles needs five more options and three
variables for it, which are set here. An option of the set with another value is refused.
"""

from __future__ import annotations

from orl_cluster.launch.argv import Options
from orl_cluster.launch.layout import LaunchRequest
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
ALONE = ("--sglang-rl-on-policy-target", "--sglang-true-on-policy-contract", "--true-on-policy-contract")
RECOMPUTE = "--recompute-logprobs-via-prefill"


def is_on(request: LaunchRequest) -> bool:
    """Tell whether the run asks for true on-policy training."""
    return request.value(MODE) is not None


def options(request: LaunchRequest, *, fsdp: bool) -> Options:
    """Return the options that belong to `--true-on-policy-mode`; none without it.

    Raises:
        ConfigError: the training backend is not FSDP, an option of the set has another value, or one of the set is
            given without the mode.
    """
    if RECOMPUTE in request.names:
        raise ConfigError(f"{RECOMPUTE}: it replaces the logprobs of sampling, on which orl trains. Remove it")
    if not is_on(request):
        alone = next((name for name in ALONE if name in request.names), None)
        if alone:
            raise ConfigError(f"{alone}: it is a part of true on-policy training. Give {MODE}, which sets all parts")
        return {}
    if not fsdp:
        raise ConfigError(
            f"{MODE}: with Megatron, miles needs {RECOMPUTE} for it, which replaces the logprobs of sampling. "
            "Use --train-backend fsdp"
        )
    training = attention(request)
    wanted: Options = {**SET, ATTENTION: training, ENGINE_ATTENTION: KERNELS[training]}
    for name, value in wanted.items():
        given = request.value(name)
        if name in request.names and given != ("" if value is True else value):
            shown = f"{name} {given}" if given is not None else f"{name} is taken away"
            raise ConfigError(f"{shown}: {MODE} needs {name}{'' if value is True else f' {value}'}. Leave it out")
    return wanted


def attention(request: LaunchRequest) -> str:
    """Return the attention of training in this mode: the user's own, else FlashAttention 3.

    Raises:
        ConfigError: SGLang has no equal kernel for the user's own.
    """
    given = request.value(ATTENTION) or "flash_attention_3"
    if given not in KERNELS:
        raise ConfigError(f"{ATTENTION} {given}: {MODE} needs one of {', '.join(KERNELS)}. Leave it out")
    return given
