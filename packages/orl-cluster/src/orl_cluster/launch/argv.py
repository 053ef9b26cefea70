"""A trainer's command line, put together: what we set, the flags of the YAML file, and what stood after `--`.

Pure, and without a list of any trainer's options: they pass through as they are. A later source takes the place of an
earlier one by the option's name, so that a flag in the file and the same flag on the command line give one command.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from orl_core.errors import ConfigError

_NAME = re.compile(r"(--)?[A-Za-z0-9][\w.-]*")
Options = Mapping[str, tuple[str, ...]]  # an option's name, and its values: none for a switch


def merge(ours: Options, flags: Mapping[str, str | float | bool | None], extra: Sequence[str]) -> list[str]:
    """The arguments: ours, then the file's `flags`, then `extra`, each without what a later one says.

    A flag of true is a switch; false and null take the option of that name away.
    """
    named = {option_name(name): value for name, value in flags.items()}
    given = names_in(extra)
    kept = {name: values for name, values in ours.items() if name not in named and name not in given}
    written = {
        name: () if value is True else (text(value),)
        for name, value in named.items()
        if value is not None and value is not False and name not in given
    }
    return [word for options in (kept, written) for name, values in options.items() for word in (name, *values)] + [
        *extra
    ]


def option_name(name: str) -> str:
    """`use-kl-loss`, `use_kl_loss` and `--use-kl-loss` are one option.

    Raises:
        ConfigError: a flag of the file is no option's name; its value may stand in it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"`trainer.flags` has `{name}`: expected a name, such as --lr, and after the colon its value")
    bare = name.removeprefix("--")
    return f"--{bare if name.startswith('--') else bare.replace('_', '-')}"


def text(value: str | float) -> str:
    """A value as on a command line; YAML's 2 arrives here as 2.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def names_in(argv: Iterable[str]) -> list[str]:
    """The names of the options in `argv`, in order."""
    return [word.partition("=")[0] for word in argv if word.startswith("--") and len(word) > 2]


def value_of(argv: Sequence[str], name: str) -> str | None:
    """The last value given to the option `name`, if any; "" for a switch."""
    found: str | None = None
    for place, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if option == name:
            following = argv[place + 1] if place + 1 < len(argv) else ""
            found = value if equals else "" if following.startswith("--") else following
    return found


def number(value: str | None, name: str) -> int | None:
    """The whole number that the option `name` has as its `value`, if any.

    Raises:
        ConfigError: it is no whole number.
    """
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name} {value}: expected a whole number") from None


def without(argv: Sequence[str], name: str) -> list[str]:
    """`argv` without the option `name` and its one value."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip and not word.startswith("--"):
            skip = False
            continue
        option, equals, _ = word.partition("=")
        skip = option == name and not equals
        if option != name:
            kept.append(word)
    return kept


def nearest(name: str, known: Collection[str]) -> str:
    """The option of `known` that `name` most likely means, or ""."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else ""
