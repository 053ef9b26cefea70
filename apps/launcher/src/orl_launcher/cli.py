"""Code that all commands share: a parser with errors in one line, options that every command has, the console.

It knows a command by its name alone. Abbreviated options are off, so that a new option never changes what an old script
means.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.text import did_you_mean

from orl_launcher import as_started, invocation

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_CONFIG = str(Path(__file__).with_name("local.yaml"))
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class UsageError(OrlError):
    """The command line cannot be followed: exit code 2."""


class Parser(argparse.ArgumentParser):
    """Parse the `words` of one command: no abbreviations, examples kept as written, errors in one line.

    The command's module has DESCRIPTION and EXAMPLES, `add_options(parser)`, and `run(arguments)`, the exit code.
    `extra` are the words after `--`. A command that leaves them to a trainer says so in `elsewhere`.
    """

    def __init__(self, command: str, words: Sequence[str] = ()) -> None:
        columns = shutil.get_terminal_size().columns
        module = import_module(f"orl_launcher.commands.{command.replace('-', '_')}")
        super().__init__(
            prog=f"{invocation()} {command}",
            description="\n".join(textwrap.fill(line, columns) for line in module.DESCRIPTION.splitlines()),
            epilog=f"examples:\n{as_started(module.EXAMPLES.rstrip())}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        cut = [*words, "--"].index("--")
        self.run: Callable[[argparse.Namespace], int] = module.run
        self.words, self.extra, self.elsewhere = words[:cut], tuple(words[cut + 1 :]), ""
        module.add_options(self)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing a usage of many lines."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self) -> argparse.Namespace:
        """Parse the words, or refuse them."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in self.words:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                self.error(f"unknown option {option}{did_you_mean(option, known) or self.elsewhere}")
        if self.extra and not self.elsewhere:
            self.error("no trainer gets what follows `--`. Leave it out")
        arguments = self.parse_intermixed_args(self.words)  # options may precede a positional argument
        arguments.words, arguments.extra = self.words, self.extra
        return arguments


def add_config(parser: argparse.ArgumentParser, *, default: str | None = None, required: bool = True) -> None:
    """Add `--config` and `--set`. Where there is a default, or the command needs no file, it is not required."""
    fallback = f" (default: {Path(default).name}, which comes with orl: a tiny model learns a game)" if default else ""
    parser.add_argument(
        "--config",
        default=default,
        required=required and default is None,
        metavar="FILE",
        help=f"configuration, a YAML file; docs/configuration.md lists all keys{fallback}",
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
        help="override one value of the file: environments.Org/Env.max_turns=3 (repeatable)",
    )


def add_split(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add `--split`."""
    parser.add_argument(
        "--split",
        dest="splits",
        action="append",
        metavar="NAME",
        help="split to list, or eval_splits for those that the file holds out (repeatable; default: the file's splits)",
    )


def add_agent(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add `--agent`. `configuration.resolve` reads the value."""
    parser.add_argument(
        "--agent",
        default=argparse.SUPPRESS,
        type=agent,
        metavar="TEXT",
        help="play with your function module:function, or with a program: 'command argument ...' (replaces `agent` and "
        "the budgets of the built-in loop)",
    )


def agent(text: str) -> str | dict[str, list[str]]:
    """Return the value of `agent` that `text` spells, for argparse: a function, or a command as a shell splits it."""
    import msgspec
    from orl_core.config.agent import Function

    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{exc}, in a command that a shell could not split either") from exc
    if not words:
        raise argparse.ArgumentTypeError("expected module:function or a command, not an empty text")
    with suppress(msgspec.ValidationError):
        return msgspec.convert(text, Function)
    return {"command": words}


def positive(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return number


def address(text: str) -> str:
    """Return `text`, the address of a server, for argparse. Refuse one with a login, without showing it."""
    if "@" in text:
        raise argparse.ArgumentTypeError("the address contains a login, which everyone can read. Remove the login")
    return text


def backend_of() -> str:
    """Return the trainer of the default configuration."""
    from orl_core.config import load_config

    return str(load_config(DEFAULT_CONFIG).trainer.backend)


def source_of(package: str) -> Path | None:
    """Return the folder of a package that is installed as editable, else None."""
    try:
        origin: dict[str, Any] = json.loads(distribution(package).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        raise ConfigError(f"{package}: not installed next to orl. Run pip install {package}") from None
    return Path(unquote(urlsplit(str(origin["url"])).path)) if origin.get("dir_info", {}).get("editable") else None


def to_install(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    return "just setup" if source_of("orl-launcher") else f"pip install 'orl-launcher[{extra}]'"


def entry(group: str) -> EntryPoint:
    """Return the entry point of a group of which a package brings one."""
    if entries := [*entry_points(group=group)]:
        return entries[0]
    raise UsageError(f"{group}: not in this environment. Run {to_install(backend_of())}")


def make_folder(folder: Path) -> None:
    """Make the folder of a new run."""
    with boundary(ConfigError, f"making {folder}, the folder of the run (another one: --name)"):
        folder.mkdir(parents=True)


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add `--name`."""
    parser.add_argument("--name", metavar="NAME", help="name of the run's folder in runs/ (default: one with the time)")


def add_python(parser: argparse.ArgumentParser) -> None:
    """Add `--python`."""
    parser.add_argument(
        "--python", metavar="PATH", help="Python that has the trainer (default: $ORL_TRAINER_PYTHON, else search PATH)"
    )


def console(*, stderr: bool = False) -> Console:
    """Return the terminal. Whatever is printed there, text from outside does not steer it and is no markup."""
    from orl_launcher.view.terminal import Terminal

    return Terminal(stderr=stderr, highlight=False, markup=False, emoji=False)  # names may hold brackets and colons
