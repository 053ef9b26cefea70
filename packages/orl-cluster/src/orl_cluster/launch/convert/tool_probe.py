"""Asks the parser of a trainer's conversion tool.

`python -m orl_cluster.launch.convert.tool_probe ANSWER TOOL FUNCTION -- arguments` writes Findings to the file ANSWER.

It runs in the trainer's own Python. The tool runs until its parser has read the arguments, and no further, so that no
GPU is needed and nothing is written.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from orl_core.errors import OrlError, boundary
from orl_core.text import did_you_mean

from orl_cluster.launch.argv import names_in
from orl_cluster.launch.machine.probe import Findings, recorded


class _ParsedError(BaseException):
    """The parser has read the arguments, all but those that it names: the tool goes no further."""


def findings(tool: str, function: str, argv: Sequence[str]) -> Findings:
    """Let the `function` of `tool` parse `argv`; without a function, the tool parses when it is run."""
    known: dict[str, bool] = {}
    name = Path(tool).name
    complete, why = False, "it parsed nothing"
    sys.argv = [tool, *argv]
    try:
        with boundary(OrlError, name), recorded(known), _stopped():
            made = runpy.run_path(tool, run_name="tool" if function else "__main__")
            made[function]()
    except _ParsedError as parsed:
        complete, why = True, f"{name}: unrecognized arguments: {parsed}" if str(parsed) else ""
    except OrlError as exc:
        why = str(exc)
    except SystemExit as exc:
        complete, why = True, f"{name}: {exc}"
    names = names_in(argv) if complete else []
    unknown = {option: did_you_mean(option, known) for option in names if option not in known}
    return Findings(unknown=unknown, complete=complete, why=why)


@contextmanager
def _stopped() -> Generator[None]:
    """Stop the tool at its first parsing."""
    parse = argparse.ArgumentParser.parse_known_args

    def parsing(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        _, left = parse(self, *args, **kwargs)
        raise _ParsedError(" ".join(left))

    argparse.ArgumentParser.parse_known_args = parsing
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_known_args = parse


if __name__ == "__main__":
    answer, tool, function, _, *argv = sys.argv[1:]
    Path(answer).write_bytes(msgspec.json.encode(findings(tool, function, argv)))
