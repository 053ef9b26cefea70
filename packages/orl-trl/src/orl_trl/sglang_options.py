"""Options of SGLang among the flags of a run: `--sglang-mem-fraction-static 0.4`, as slime and miles name them.

They go to the command of the SGLang that TRL starts, without `sglang-`. SGLang checks their names and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from orl_core.config.trainer import Flag
from orl_core.errors import ConfigError

PREFIX = "--sglang-"
_ONE_GPU = "the engine is on the GPU that trains, and its weights come from there"
# Options that orl sets, each with the reason why nobody else does.
OWNED = {
    "model": "`model` sets it",
    "model-path": "`model` sets it",
    "host": "SGLang listens on this machine alone",
    "port": "orl takes a free one",
    "context-length": "`rollout.context_tokens` sets it",
    "dtype": "weights arrive in bfloat16",
    "random-seed": "`seed` sets it",
    "weight-version": "it is the step",
    "skip-tokenizer-init": "rollouts are token ids",
    "enable-memory-saver": "it is on wherever torch_memory_saver is installed",
    **dict.fromkeys(("tp", "tp-size", "tensor-parallel-size"), _ONE_GPU),
    **dict.fromkeys(("pp", "pp-size", "pipeline-parallel-size"), _ONE_GPU),
    **dict.fromkeys(("dp", "dp-size", "data-parallel-size"), _ONE_GPU),
}


class Options(Struct, frozen=True, kw_only=True):
    """The flags of a run, apart: `sglang` are words of SGLang's command, the others belong to TRL."""

    sglang: tuple[str, ...]
    flags: dict[str, Flag]
    extra: tuple[str, ...]


def options_of(flags: Mapping[str, Flag], extra: Sequence[str]) -> Options:
    """Sort `flags`, those of the file, and `extra`, the words after `--`, which come last and override them.

    Raises:
        ConfigError: an option of SGLang is orl's own, or its value is false.
    """
    words = [word for name, value in flags.items() if _is_sglangs(name) for word in _words(name, value)]
    rest: list[str] = []
    target = rest
    for word in extra:
        if word.startswith("--"):
            target = words if _is_sglangs(word) else rest
        target.append(f"--{word.removeprefix(PREFIX)}" if target is words and word.startswith("--") else word)
    for name in (word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")):
        if name in OWNED:
            raise ConfigError(f"the option {PREFIX}{name} is refused: {OWNED[name]}. Leave it out")
    own = {name: value for name, value in flags.items() if not _is_sglangs(name)}
    return Options(sglang=tuple(words), flags=own, extra=tuple(rest))


def _option(name: str) -> str:
    """Return the name of a flag in the file as on the command line."""
    return f"--{name.removeprefix('--').replace('_', '-')}"


def _is_sglangs(name: str) -> bool:
    return _option(name).startswith(PREFIX)


def _words(name: str, value: Flag) -> list[str]:
    option = f"--{_option(name).removeprefix(PREFIX)}"
    if value is None:
        return []
    if value is False:
        raise ConfigError(f"trainer.flags has {name}: false, and SGLang's switches are off by default. Remove it")
    if value is True:
        return [option]
    return [option, str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)]
