"""What the parsers of all commands share: one-line errors that suggest, options that every command has, the console.

It knows no command. Abbreviated options are off, so that a new option never changes what an old script means.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orl_core.errors import OrlError

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from rich.console import Console

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class UsageError(OrlError):
    """The command line cannot be followed: exit code 2."""


class Parser(argparse.ArgumentParser):
    """A parser of one command: no abbreviations, examples kept as written, errors in one line."""

    def __init__(self, command: str, *, description: str, examples: str) -> None:
        super().__init__(
            prog=f"orl {command}",
            description=description,
            epilog=f"examples:\n{examples.rstrip()}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing a usage of many lines."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`.

        Raises:
            UsageError: with the nearest option, where one is unknown.
        """
        known = [option for action in self._actions for option in action.option_strings]
        for word in argv:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                from orl_core.text import did_you_mean

                self.error(f"unknown option {option}{did_you_mean(option, known)}")
        return self.parse_args(argv)


def add_config(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add `--config` and `--set`."""
    fallback = f" (default: {default})" if default else ""
    parser.add_argument(
        "--config",
        default=default,
        required=default is None,
        metavar="FILE",
        help=f"the experiment, a YAML file; those in configs/ are commented{fallback}",
    )
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add `--set`."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override one value of the file, such as environments.Org/Env.max_turns=3; may be repeated",
    )


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return number


def address(text: str) -> str:
    """Return `text`, the address of a server, for argparse; one with a login is refused and not shown."""
    if "@" in text:
        raise argparse.ArgumentTypeError("an address with a login, which everyone could read: leave the login out")
    return text


def config_of(arguments: argparse.Namespace, more: Sequence[str] = ()) -> RunConfig:
    """The configuration that `--config`, `--set` and `more` overrides give; `--set` has the last word.

    Raises:
        ConfigError: it is wrong.
    """
    from orl_core.config import load_config
    from orl_rollout.logs import keep_out
    from orl_rollout.secrets.secrets import Scrubber, refuse_repeats

    config = load_config(Path(arguments.config), [*more, *arguments.overrides])
    keep_out(Scrubber.of(config))
    refuse_repeats(config)
    return config


def console(*, stderr: bool = False) -> Console:
    """Return the terminal. Whatever is printed there, text from outside does not steer it and is no markup."""
    from orl_launcher.view.terminal import Terminal

    return Terminal(stderr=stderr, highlight=False, markup=False, emoji=False)  # names may hold brackets and colons
