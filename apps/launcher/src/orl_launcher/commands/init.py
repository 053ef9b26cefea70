"""`orl init`: write a commented configuration for an environment, from the answers of its server, and check it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from orl_launcher import cli, invocation, trainers
from orl_launcher.playground import ORGANISATION, playground

if TYPE_CHECKING:
    from orl_launcher.init.survey import Survey

FIRST = f"{ORGANISATION}GuessNumber"  # an environment, and the tiny model that was made for it
KINDS = f"http://HOST:PORT of your server, Organization/Environment of OpenReward, or {FIRST}"
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
DESCRIPTION = """\
Ask the server of an environment for splits, tasks, tools and required secrets. Write a commented configuration, and run
orl doctor on it. No file is overwritten. The exit code is that of doctor.
ENVIRONMENT is the address of a server of your own, or Organization/Environment at OpenReward, which needs
OPENREWARD_API_KEY, or an environment of the playground.
"""
EXAMPLES = """\
  orl init playground/GuessNumber --output first.yaml           the playground: a tiny model, no GPU, no key
  orl init http://127.0.0.1:8080 --output my.yaml               a server of your own
  orl init http://127.0.0.1:8080 --variant seven                one of several environments of a server
  orl init GeneralReasoning/WhoDunIt --model Qwen/Qwen3-4B --trainer slime
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl init`."""
    options.add_argument(
        "environment",
        nargs="?",
        metavar="ENVIRONMENT",
        type=_environment,
        help=KINDS,
    )
    options.add_argument("--output", metavar="FILE", type=Path, help="file to write (default: NAME.yaml)")
    options.add_argument("--variant", metavar="NAME", help="environment of your server, if it serves several")
    options.add_argument(
        "--model", metavar="MODEL", help=f"model to train (default: {DEFAULT_MODEL}; GuessNumber: its tiny model)"
    )
    trainer = cli.backend_of()
    options.add_argument("--trainer", type=trainers.known, default=trainer, help=f"trainer (default: {trainer})")
    options.add_argument(
        "--timeout", type=cli.positive, default=60, metavar="S", help="seconds per question (default: 60)"
    )


def _environment(text: str) -> str:
    """Return an address or a name, for argparse."""
    if "://" not in text and "/" not in text:
        raise argparse.ArgumentTypeError(f"expected http://HOST:PORT or Organization/Environment, not {text!r}")
    return cli.address(text)


def run(arguments: argparse.Namespace) -> int:
    """Write the file and check it. Return doctor's exit code."""
    from orl_core.config.schema import editor_schema

    from orl_launcher.doctor.doctor import check_up
    from orl_launcher.init.write import PLAYED_BY_TINY, SCHEMA, config_text, write_config

    if not arguments.environment:
        raise cli.UsageError(f"no environment. Give {KINDS} (see {invocation()} init --help)")
    env = _surveyed(arguments)
    output = arguments.output or Path(f"{env.name.rpartition('/')[2].lower()}.yaml")
    trainer = trainers.find_trainer(arguments.trainer)
    model = arguments.model or (FIRST if env.name in PLAYED_BY_TINY else DEFAULT_MODEL)
    command = f"orl init {arguments.environment}"
    section = {**trainer.defaults, "backend": arguments.trainer, "model": model}
    text = config_text(env, command=command, output=output, trainer=section)
    try:
        write_config(output, text)
    except OSError as exc:
        raise cli.UsageError(f"{output}: {exc.strerror}. Choose another --output") from exc
    (output.parent / SCHEMA).write_text(editor_schema(trainers.sections()), encoding="utf-8")
    cli.console().print(f"wrote {output}\n")
    checked = cli.Parser("doctor", ["--config", str(output), "--timeout", str(arguments.timeout)]).parse()
    good = check_up(checked, plans=False).ok
    file = shlex.quote(str(output))
    advice, words = "To train", f"train {arguments.trainer} --config {file}"
    if not good:
        advice, words = "Correct what failed. To check again", f"doctor --config {file}"
    elif model.startswith(ORGANISATION) and env.name not in PLAYED_BY_TINY:
        advice = "This model knows only GuessNumber. To teach it this environment first"
        words = f"warm-start --config {file} --player MODULE:FUNCTION"
    cli.console().print(f"\n{advice}: {invocation()} {words}")
    return 0 if good else cli.EXIT_FAILED


def _surveyed(arguments: argparse.Namespace) -> Survey:
    """Ask a self-hosted server, OpenReward, or the playground, which is served meanwhile."""
    from msgspec import structs
    from orl_core.config import decode_config
    from orl_rollout.edge import interrupt

    from orl_launcher.init.survey import name_at, survey

    name, seconds = arguments.environment, arguments.timeout
    if "://" in name:
        url = name.rstrip("/")
        name = interrupt.run(name_at(url, arguments.variant, seconds=seconds))
        return interrupt.run(survey(name, url, seconds=seconds))
    if arguments.variant:
        raise cli.UsageError(f"--variant {arguments.variant}: {name} is one environment. Leave the option out")
    with playground(decode_config({"environments": {name: {}}}, "ENVIRONMENT")) as config:
        env = interrupt.run(survey(name, next(iter(config.environments[name].addresses), None), seconds=seconds))
    return structs.replace(env, base_url=None)
