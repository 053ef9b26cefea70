"""The engine of a run's rollouts and the reason for it, with the options of an engine that orl starts.

Options of SGLang are named as slime and miles name them: `--sglang-mem-fraction-static 0.4`. They go to the command of
SGLang without `sglang-`, and SGLang checks them; those of vLLM, `--vllm-...`, likewise. This module starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from msgspec import Struct, structs
from orl_core.config.trainer import Flag
from orl_core.errors import ConfigError
from orl_rollout.gpus import gpu_memory

from orl_local.engine.control import OWN_SHARE, SHARE, Control
from orl_local.engine.sglang_control import SglangControl, source_of_sglang
from orl_local.engine.vllm_control import VllmControl
from orl_local.settings import TINY

STARTED: Mapping[str, type[Control]] = {"sglang": SglangControl, "vllm": VllmControl}  # `auto` prefers the first
PREFIXES = tuple(f"--{name}-" for name in STARTED)
PARALLEL = ("tensor-parallel-size", "tp-size", "tp")
TENSOR_PARALLEL = f"--(?:{'|'.join(PARALLEL)})"
LARGE_GPU, OWN_GRAPHS = 60 << 30, 256  # bytes from which SGLang captures decode graphs for up to so many requests


class EngineChoice(Struct, frozen=True, kw_only=True):
    """The engine: of STARTED, "transformers", or the address of an SGLang that the user serves, and why it is that one.

    `options` are words of the command of an engine that orl starts. Each takes `each` of the `gpus`. `apart`: none of
    these trains.
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
    def kind(self) -> str:
        """The name in STARTED of the engine that is started, is at the address, or would be on a GPU."""
        return self.engine if self.engine in STARTED else "sglang"

    @property
    def control(self) -> type[Control]:
        """The control of an engine of this kind."""
        return STARTED[self.kind]

    @property
    def share_option(self) -> str:
        """The option that sets the share of a GPU that the engine takes."""
        return self.control.SHARE_OPTION.replace("--", f"--{self.kind}-", 1)

    @property
    def share(self) -> float:
        """The share of its GPU that an engine takes."""
        return float(self._option(self.control.SHARE_OPTION) or (OWN_SHARE if self.apart else SHARE))

    @property
    def each(self) -> int:
        """The number of GPUs of an engine, which divides each tensor over them."""
        return max(1, int(float(self._option(TENSOR_PARALLEL) or 1)))

    def _option(self, name: str) -> str:
        """Return the number of the last option `name`, a pattern; "" if there is none."""
        numbers = re.findall(rf"(?:{name})[= ](\d*\.?\d+)", " ".join(self.options))
        return numbers[-1] if numbers else ""

    @property
    def memory_share(self) -> float | None:
        """The share of a GPU that trains which the engine takes; None if the model itself is the engine."""
        if self.engine not in STARTED or self.apart:
            return 0.0 if self.url or self.apart else None
        return self.share


def engine_of(wanted: str, parameters: int | None, options: Sequence[str]) -> EngineChoice:
    """Choose the engine for `wanted`, of `trainer.local.engine`. `parameters` are the model's; None: unknown.

    `auto` takes SGLang, or else vLLM, for a model of at least TINY parameters, and for one whose size is unknown. Their
    start takes about a minute, in which a tiny model makes several steps.

    Raises:
        ConfigError: an engine is wanted and cannot run here, or `options` are another's or orl's own.
    """
    missing = {name: missing_for(name) for name in STARTED}
    here = next((name for name, fault in missing.items() if not fault), "")
    if missing.get(wanted):
        raise ConfigError(f"trainer.local.engine is {wanted}, but {missing[wanted]}. Set it to auto")
    if wanted != "auto":
        engine, reason = wanted.rstrip("/"), f"trainer.local.engine is {wanted}"
    elif not here:
        engine, reason = "transformers", missing["sglang"]
    elif parameters is not None and parameters < TINY:
        engine = "transformers"
        reason = f"the model has {parameters:,} parameters, and {STARTED[here].NAME} is for {TINY:,} or more"
    else:
        engine, reason = here, f"there are a CUDA GPU, `{here}`, and a model that is not tiny"
    choice = EngineChoice(engine=engine, reason=reason)
    prefix = f"--{engine}-"
    for name in (word.partition("=")[0] for word in options if word.startswith("--")):
        if not name.startswith(prefix):
            raise ConfigError(f"{name} needs the engine {name[2:].partition('-')[0]}, which orl starts, but {choice}")
        bare = name.removeprefix(prefix).partition(".")[0].removeprefix("no-")
        if bare in choice.control.OWNED:
            raise ConfigError(f"the option {name} is refused, because orl sets it. Leave it out")
        known = {*PARALLEL, choice.control.SHARE_OPTION[2:]}  # orl reads them
        longer = sorted(one for one in known | choice.control.OWNED if one.startswith(bare))
        if bare not in known and longer:
            raise ConfigError(
                f"the option {name} is refused, because it is short for {prefix}{longer[0]}. Write that out"
            )
    if short := next((word for word in options if re.match("-[A-Za-z]", word)), ""):
        raise ConfigError(f"the option {short} is refused: it is short. Write its name out: {prefix}NAME")
    # A flag of vLLM has an opposite, and one of SGLang is left out.
    named = (word.replace(prefix, "--", 1) for word in options if engine == "vllm" or not word.endswith("=False"))
    words = (re.sub(r"^--([^.]*)=(?:True|(False))$", _flag, word) for word in named)
    return structs.replace(choice, options=tuple(words))


def missing_for(engine: str) -> str:
    """Return why an engine of STARTED cannot run here; "" if it can. It is not imported."""
    if not gpu_memory():
        return "this machine has no GPU"
    if not find_spec(engine):
        return f"`{engine}` is not installed{' (`just setup-gpu` installs it)' * (engine == 'sglang')}"
    with suppress(PackageNotFoundError):
        if engine == "vllm" and (old := re.match(r"0\.([12]?\d|3[01])\.\d", version(engine))):
            return f"`vllm` {old.string} is installed, and orl needs 0.32 or later"
    return ""


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
    """Return the words for engines and the others: the `flags` of the file, then `extra`, which overrides."""
    engines: list[str] = []
    rest: list[str] = []
    target = rest
    for word in map(_dashed, (*_words(flags), *extra)):
        if word.startswith("--"):
            target = engines if word.startswith(PREFIXES) else rest
        target.append(word)
    return tuple(engines), tuple(rest)


def _words(flags: Mapping[str, Flag]) -> list[str]:
    """Return flags as on a command line. A null flag is not set; YAML's 2 arrives here as 2.0."""
    words: list[str] = []
    for name, value in flags.items():
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if value is not None:
            words.append(f"--{name.removeprefix('--')}={whole}")
    return words


def _flag(option: re.Match[str]) -> str:
    return f"--no-{option[1]}" if option[2] else f"--{option[1]}"


def _dashed(word: str) -> str:
    """Return a word with dashes in the name of an option, as vLLM reads it. What follows a dot is a key of JSON."""
    return re.sub("^--[^.=]*", lambda name: name[0].replace("_", "-"), word)
