"""The engine of a run's rollouts and the reason for it, with the options of an SGLang that orl starts.

Options of SGLang are named as slime and miles name them: `--sglang-mem-fraction-static 0.4`. They go to the command of
SGLang without `sglang-`, and SGLang checks them. This module starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from msgspec import Struct
from orl_core.config.trainer import Flag
from orl_core.errors import ConfigError
from orl_rollout.gpus import gpu_memory

from orl_local.engine.sglang_process import MEMORY_SHARE, OWN_SHARE, SHARE, source_of_sglang
from orl_local.settings import TINY

PREFIX = "--sglang-"
# Options that orl sets. Each SGLang runs on one GPU, or divides each tensor over several.
_OWNED = (
    "model model-path host port context-length dtype random-seed weight-version skip-tokenizer-init "
    "enable-memory-saver base-gpu-id gpu-id-step pp pp-size pipeline-parallel-size dp dp-size data-parallel-size"
)
TENSOR_PARALLEL = "--(?:tp|tp-size|tensor-parallel-size)"
OWNED = frozenset(_OWNED.split())
LARGE_GPU, OWN_GRAPHS = 60 << 30, 256  # bytes from which SGLang captures decode graphs for up to so many requests


class EngineChoice(Struct, frozen=True, kw_only=True):
    """The engine: "sglang", "transformers" or the address of an SGLang that the user serves, and why it is that one.

    `options` are words of the command of an SGLang that orl starts. Each SGLang takes `each` of the `gpus`. `apart`:
    none of these trains.
    """

    engine: str
    reason: str
    options: tuple[str, ...] = ()
    gpus: tuple[int, ...] = (0,)
    apart: bool = False

    def __str__(self) -> str:
        where = f" on GPUs {', '.join(map(str, self.gpus))}" if self.gpus != (0,) else ""
        return f"engine: {self.engine}{where}, because {self.reason}"

    @property
    def url(self) -> str:
        """The address of the user's SGLang; "" if there is none."""
        return self.engine if self.engine.startswith("http") else ""

    @property
    def share(self) -> float:
        """The share of its GPU that an SGLang takes."""
        return float(self._option(MEMORY_SHARE) or (OWN_SHARE if self.apart else SHARE))

    @property
    def each(self) -> int:
        """The number of GPUs of an SGLang, which divides each tensor over them."""
        return max(1, int(float(self._option(TENSOR_PARALLEL) or 1)))

    def _option(self, name: str) -> str:
        """Return the number of the last option `name`, a pattern; "" if there is none."""
        numbers = re.findall(rf"{name}[= ](\d*\.?\d+)", " ".join(self.options))
        return numbers[-1] if numbers else ""

    @property
    def memory_share(self) -> float | None:
        """The share of a GPU that trains which the engine takes; None if the model itself is the engine."""
        if self.engine != "sglang" or self.apart:
            return 0.0 if self.url or self.apart else None
        return self.share


def engine_of(wanted: str, parameters: int | None, options: Sequence[str]) -> EngineChoice:
    """Choose the engine for `wanted`, of `trainer.local.engine`. `parameters` are the model's; None: unknown.

    `auto` takes SGLang for a model of at least TINY parameters, and for one whose size is unknown. Starting SGLang
    takes about a minute, in which a tiny model makes several steps.

    Raises:
        ConfigError: SGLang is wanted and cannot run here, or it has `options` and is not started.
    """
    missing = missing_for_sglang()
    if wanted == "sglang" and missing:
        raise ConfigError(f"trainer.local.engine is sglang, but {missing}. Set it to auto")
    if wanted != "auto":
        engine, reason = wanted.rstrip("/"), f"trainer.local.engine is {wanted}"
    elif missing:
        engine, reason = "transformers", missing
    elif parameters is not None and parameters < TINY:
        engine = "transformers"
        reason = f"the model has {parameters:,} parameters, and SGLang is for {TINY:,} or more"
    else:
        engine, reason = "sglang", "there are a CUDA GPU, `sglang`, and a model that is not tiny"
    choice = EngineChoice(engine=engine, reason=reason, options=tuple(options))
    if options and engine != "sglang":
        raise ConfigError(f"{options[0].replace('--', PREFIX, 1)} needs an SGLang that orl starts, but {choice}")
    return choice


def missing_for_sglang() -> str:
    """Return why SGLang cannot run here; "" if it can. SGLang is not imported."""
    if not gpu_memory():
        return "this machine has no GPU"
    return "" if find_spec("sglang") else "`sglang` is not installed (`just setup-gpu` installs it)"


def graph_options(rollouts: int, options: Sequence[str]) -> tuple[str, ...]:
    """Return the option of SGLang that captures CUDA graphs for the rollouts of a step, and no more.

    Empty if `options` choose, if the GPU is so small that SGLang captures few, or if its version lacks the option.
    """
    small = not any(gpu.total >= LARGE_GPU for gpu in gpu_memory()[:1])
    if small or rollouts >= OWN_GRAPHS or any("cuda-graph" in word for word in options):
        return ()
    source = source_of_sglang("srt/server_args.py")
    known = source is not None and "cuda_graph_max_bs_decode" in source.read_text("utf-8")
    return ("--cuda-graph-max-bs-decode", str(rollouts)) if known else ()


def split_options(flags: Mapping[str, Flag], extra: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of SGLang's command and the others: the `flags` of the file, then `extra`, which overrides.

    Raises:
        ConfigError: an option of SGLang is orl's own.
    """
    sglang: list[str] = []
    rest: list[str] = []
    target = rest
    for word in (*_words(flags), *extra):
        if word.startswith("--"):
            target = sglang if word.startswith(PREFIX) else rest
        target.append(word)
    for name in (word.removeprefix(PREFIX).partition("=")[0] for word in sglang if word.startswith(PREFIX)):
        if name in OWNED:
            raise ConfigError(f"the option {PREFIX}{name} is refused, because orl sets it. Leave it out")
    return tuple(
        word.replace(PREFIX, "--", 1).removesuffix("=True") for word in sglang if not word.endswith("=False")
    ), tuple(rest)


def _words(flags: Mapping[str, Flag]) -> list[str]:
    """Return flags as on a command line. A null flag is not set; YAML's 2 arrives here as 2.0."""
    words: list[str] = []
    for name, value in flags.items():
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if value is not None:
            words.append(f"--{name.removeprefix('--').replace('_', '-')}={whole}")
    return words
