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
from orl_rollout.run_folder.contract import Run

from orl_local.engine.sglang_process import MEMORY_SHARE, SHARE, source_of_sglang
from orl_local.options import DEFAULTS, own_options
from orl_local.settings import TINY

PREFIX = "--sglang-"
# Options that orl sets. One GPU trains and samples, so SGLang runs on it alone.
_OWNED = (
    "model model-path host port context-length dtype random-seed weight-version skip-tokenizer-init "
    "enable-memory-saver tp tp-size tensor-parallel-size pp pp-size pipeline-parallel-size dp dp-size "
    "data-parallel-size"
)
OWNED = frozenset(_OWNED.split())
LARGE_GPU, OWN_GRAPHS = 60 << 30, 256  # bytes from which SGLang captures decode graphs for up to so many requests


class EngineChoice(Struct, frozen=True, kw_only=True):
    """The engine: "sglang", "transformers" or the address of an SGLang that the user serves, and why it is that one.

    `options` are words of the command of an SGLang that orl starts.
    """

    engine: str
    reason: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"engine: {self.engine}, because {self.reason}"

    @property
    def url(self) -> str:
        """The address of the user's SGLang; "" if there is none."""
        return self.engine if self.engine.startswith("http") else ""

    @property
    def memory_share(self) -> float | None:
        """The share of the GPU that the engine takes during training; None if the model itself is the engine."""
        if self.engine != "sglang":
            return 0.0 if self.url else None
        shares = re.findall(rf"{MEMORY_SHARE}[= ](\d*\.?\d+)", " ".join(self.options))
        return float(shares[-1]) if shares else SHARE


def engine_of(run: Run, parameters: int | None) -> EngineChoice:
    """Choose the engine of a run on this machine. `parameters` are the model's; None if they are unknown.

    Raises:
        ConfigError: SGLang is wanted and cannot run here, or it has options and is not started.
    """
    engine, reason = choose_engine(own_options(run.config.trainer).engine, parameters, missing_for_sglang())
    options, _ = split_options(run.config.trainer.own_flags, run.extra)
    choice = EngineChoice(engine=engine, reason=reason, options=options)
    if options and engine != "sglang":
        raise ConfigError(f"{options[0].replace('--', PREFIX, 1)} needs an SGLang that orl starts, but {choice}")
    return choice


def graph_options(run: Run, options: Sequence[str]) -> tuple[str, ...]:
    """Return the option of SGLang that captures CUDA graphs for the rollouts of a step, and no more.

    Empty if `options` choose, if the GPU is so small that SGLang captures few, or if its version lacks the option.
    """
    trainer = run.config.trainer.with_defaults(DEFAULTS)
    rows = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    small = not any(gpu.total >= LARGE_GPU for gpu in gpu_memory()[:1])
    if small or rows >= OWN_GRAPHS or any("cuda-graph" in word for word in options):
        return ()
    source = source_of_sglang("srt/server_args.py")
    known = source is not None and "cuda_graph_max_bs_decode" in source.read_text("utf-8")
    return ("--cuda-graph-max-bs-decode", str(rows)) if known else ()


def missing_for_sglang() -> str:
    """Return why SGLang cannot run here; "" if it can. SGLang is not imported."""
    if not gpu_memory():
        return "this machine has no GPU"
    return "" if find_spec("sglang") else "`sglang` is not installed (`just setup-gpu` installs it)"


def choose_engine(wanted: str, parameters: int | None, missing: str) -> tuple[str, str]:
    """Return the engine for `wanted`, of `trainer.local.engine`, and the reason. SGLang cannot run if one is `missing`.

    `auto` takes SGLang for a model of at least TINY parameters, and for one whose size is unknown. Starting SGLang
    takes about a minute, in which a tiny model makes several steps.
    """
    if wanted == "sglang" and missing:
        raise ConfigError(f"trainer.local.engine is sglang, but {missing}. Set it to auto")
    if wanted != "auto":
        return wanted.rstrip("/"), f"trainer.local.engine is {wanted}"
    if missing:
        return "transformers", missing
    if parameters is not None and parameters < TINY:
        return "transformers", f"the model has {parameters:,} parameters, and SGLang is for {TINY:,} or more"
    return "sglang", "there are a CUDA GPU, `sglang`, and a model that is not tiny"


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
    """Return flags as on a command line. A null flag is not set."""
    set_flags = {name.removeprefix("--").replace("_", "-"): value for name, value in flags.items() if value is not None}
    return [f"--{name}={_text(value)}" for name, value in set_flags.items()]


def _text(value: str | float | bool) -> str:
    """Return a flag's value as on a command line; YAML's 2 arrives here as 2.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
