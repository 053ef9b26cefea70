"""A trainer's command line from three sources: our options, the flags of the YAML file, and the words after `--`.

Pure, and without a list of any trainer's options: they pass through as they are. A later source replaces an earlier one
by the option's name, so that a flag in the file and the same flag on the command line give one command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orl_core.errors import ConfigError

_NAME = re.compile(r"(--)?[A-Za-z0-9][\w.-]*")
Value = str | float | Path | tuple[str | Path, ...] | None
Options = Mapping[str, Value]  # an option and its value: True for a switch, False or None for an option to leave out


def merge(ours: Options, flags: Options, extra: Sequence[str]) -> list[str]:
    """Return the arguments: ours, then the file's `flags`, then `extra`. A later one replaces an earlier one."""
    filed = {option_name(name): whole(value) for name, value in flags.items()}
    replaced = names_in(extra)
    options = [*((name, value) for name, value in ours.items() if name not in filed), *filed.items()]
    return [word for name, value in options if name not in replaced for word in _words(name, value)] + [*extra]


def _words(name: str, value: Value) -> list[str]:
    if value is None or value is False:
        return []
    values = () if value is True else value if isinstance(value, tuple) else (value,)
    return [name, *map(str, values)]


def option_name(name: str) -> str:
    """Return the option of a flag: `use-kl-loss`, `use_kl_loss` and `--use-kl-loss` are one."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"`trainer.flags` has `{name}`: expected a name, such as --lr, and after the colon its value")
    bare = name.removeprefix("--")
    return f"--{bare if name.startswith('--') else bare.replace('_', '-')}"


def whole(value: Value) -> Value:
    """Return a flag's value with the integer that YAML's reader made a float: 2.0 is 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def split_options(argv: Iterable[str]) -> list[list[str]]:
    """Return the words of each option in `argv`: its name, and the values that follow it."""
    split: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not split:
            split.append([])
        split[-1].append(word)
    return split


def shell_text(environment: Mapping[str, str], program: Sequence[str], argv: Sequence[str]) -> str:
    """Write a command for people and for a shell, one option a line, after the variables of its `environment`."""
    first = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    options = [f"    {shlex.join(option)}" for option in split_options(argv)]
    return " \\\n".join([*([first] if first else []), f"  {shlex.join(program)}", *options])


def names_in(argv: Iterable[str]) -> list[str]:
    """Return the names of the options in `argv`, in order."""
    return [word.partition("=")[0] for word in argv if word.startswith("--") and len(word) > 2]


def value_of(argv: Sequence[str], name: str) -> str | None:
    """Return the last value given to the option `name`; "" for a switch, None if it is not given."""
    last: str | None = None
    for first, *values in split_options(argv):
        option, equals, value = first.partition("=")
        if option == name:
            last = value if equals else next(iter(values), "")
    return last


def number(argv: Sequence[str], name: str, default: int = 1) -> int:
    """Return the whole number that the option `name` has; `default` if it is not given, or 0.

    Raises:
        ConfigError: it is no whole number.
    """
    value = value_of(argv, name)
    try:
        return int(value or 0) or default
    except ValueError:
        raise ConfigError(f"{name} {value}: expected a whole number") from None


def without(argv: Sequence[str], name: str) -> list[str]:
    """Return `argv` without the option `name` and its one value."""
    kept: list[str] = []
    for first, *values in split_options(argv):
        option, equals, _ = first.partition("=")
        kept += values[not equals :] if option == name else [first, *values]
    return kept
