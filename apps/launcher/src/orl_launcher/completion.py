"""Completion of commands and options in bash and zsh: `eval "$(register-python-argcomplete orl)"` turns it on.

The shell then runs `orl` with the variable _ARGCOMPLETE. argcomplete reads the line from other variables, writes what
could follow, and ends the process.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

import argcomplete


def complete(commands: Iterable[str], completer: Any = argcomplete.autocomplete) -> None:
    """Write the completions of the shell's line: of a command's name, or of the options of the command that it names.

    Raises:
        SystemExit: at its end.
    """
    words = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))].split(" ")
    names = [*commands]
    chosen = words[1] if len(words) > 2 and words[1] in names else None
    if chosen:
        os.environ["_ARGCOMPLETE"] = "2"  # the command's own words begin at the second one
        from orl_launcher.cli import Parser

        parser = Parser(chosen, words[2:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("command", choices=names)
        parser.add_argument("--version", action="store_true")
    completer(parser)
