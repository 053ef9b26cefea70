"""Run the `orl` command: read options, call orl_rollout and a trainer's adapter, show results.

This package is a command. To use orl from Python, import orl_core and orl_rollout. Nothing but the standard library is
imported here.

main             the command line, which imports one of `commands` and runs it
commands         one module for each command
cli              the parser that all commands share
configuration    the configuration of a command, resolved once
trainers         find the adapter of a trainer, make its options, and plan a run
doctor           the checks of `orl doctor`
view             the terminal, charts, the HTML report, and the pages of `orl view`
playground       the environments and models that the command brings itself
episodes         the episodes of a warm start
"""

import os


def invocation() -> str:
    """Return the words that start this program as it was started: `uv run orl`, which `just` uses too, or `orl`."""
    return "uv run orl" if "UV_RUN_RECURSION_DEPTH" in os.environ else "orl"


def as_started(text: str) -> str:
    """Return examples with the command as this program was started."""
    return text.replace("  orl ", f"  {invocation()} ")
