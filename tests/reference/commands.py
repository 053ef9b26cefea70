"""The page of every command: the help of each one, as the terminal shows it."""

from __future__ import annotations

import os

from orl_launcher.cli import Parser
from orl_launcher.main import COMMANDS

INTRODUCTION = """\
# Commands

This page is made of the program's own help. `just NAME` runs `uv run orl NAME`, with torch for the commands that need
it. `orl --version` prints the version. The exit code is 0 if the command is done, 1 if it failed, and 2 if the command
line is wrong. After a signal it is 128 plus the signal's number.
"""


def page() -> str:
    """Return the page in Markdown."""
    given = dict(os.environ)
    os.environ["COLUMNS"] = "100"
    os.environ.pop("UV_RUN_RECURSION_DEPTH", None)  # with it, examples begin with `uv run`
    try:
        helps = {command: Parser(command).format_help() for command in COMMANDS}
    finally:
        os.environ.clear()
        os.environ.update(given)
    return INTRODUCTION + "".join(
        f"\n## orl {command}\n\n{COMMANDS[command].capitalize()}.\n\n```text\n{text}```\n"
        for command, text in helps.items()
    )
