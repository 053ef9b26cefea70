"""`orl doctor`: check what a run needs before it starts. Print one page, and give scripts an exit code."""

from __future__ import annotations

import argparse

from orl_launcher import cli
from orl_launcher.reports import add_json, for_people, print_json
from orl_launcher.trainers import PLAYED, add_shared

DESCRIPTION = """\
Check configuration, secrets, environments, tokenizer, first prompt, engine and trainer before a run.
One session of each environment is opened and closed; with --fit, some episodes are played without a model.
Each line says what to do. No secret's value is shown.
The exit code is 0 if no check failed, else 1.
"""
EXAMPLES = """\
  orl doctor --config configs/local.yaml
  orl doctor --config configs/whodunit.yaml --model Qwen/Qwen3-4B --full
  orl doctor --config configs/whodunit.yaml --model Qwen/Qwen3-4B --engine http://127.0.0.1:30000
  orl doctor --config configs/whodunit.yaml --model /models/Qwen3-4B --python /envs/slime/bin/python
  orl doctor --config configs/whodunit.yaml --model Qwen/Qwen3-4B --fit     before you rent a GPU
  orl doctor --config configs/local.yaml --agent my_module:agent
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl doctor`."""
    cli.add_config(options, default=cli.DEFAULT_CONFIG)
    add_shared(options, PLAYED)
    cli.add_agent(options)
    options.add_argument(
        "--engine", type=cli.address, metavar="URL", help="running server or router of SGLang or vLLM to check"
    )
    cli.add_python(options)
    options.add_argument(
        "--fit",
        action="store_true",
        help="play some episodes of each environment without a model: do context and budgets hold them?",
    )
    options.add_argument(
        "--player",
        metavar="MODULE:FUNCTION",
        help="your function that plays for --fit, which it implies (default: random calls)",
    )
    options.add_argument("--full", action="store_true", help="show the whole first prompt")
    options.add_argument(
        "--timeout", type=cli.positive, default=60, metavar="S", help="seconds per check (default: 60)"
    )
    add_json(options)


def run(arguments: argparse.Namespace) -> int:
    """Print the page. Return the exit code."""
    from orl_launcher.doctor.doctor import check_up

    with for_people(arguments):
        report = check_up(arguments)
    if arguments.json:
        print_json(report)
    return 0 if report.ok else cli.EXIT_FAILED
