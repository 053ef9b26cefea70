"""`orl doctor`: everything that a run rests on, looked at before the run: one page, and an exit code for scripts.

The order is that of the flow: configuration, secrets, environments, tokenizer, first prompt, engine, trainer. What can
be looked at is looked at, whatever failed before. Nothing is written, trained or played.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from orl_core.errors import OrlError

from orl_launcher import cli
from orl_launcher.commands.train import DEFAULT_CONFIG
from orl_launcher.playground import is_made, playground, served_here, warm_model
from orl_launcher.trainer_options import quoted

if TYPE_CHECKING:
    from orl_core.config import RunConfig

    from orl_launcher.doctor.environments import Opened
    from orl_launcher.doctor.model import Reader
    from orl_launcher.doctor.report import Page

SECONDS = 60
DESCRIPTION = """\
Look at everything that a run rests on, before it runs: configuration, secrets, environments (one session of each is
opened), tokenizer, the first prompt, engine, trainer. Each line says what to do. No value of a secret is shown.
The exit code is 0 where nothing failed, else 1.
"""
EXAMPLES = """\
  orl doctor --config configs/local.yaml
  orl doctor --config configs/whodunit.yaml --model Qwen/Qwen3-4B --full
  orl doctor --config configs/whodunit.yaml --model Qwen/Qwen3-4B --engine http://127.0.0.1:30000
  orl doctor --config configs/whodunit.yaml --model /models/Qwen3-4B --python /envs/slime/bin/python
"""


def parser() -> cli.Parser:
    """The options of `orl doctor`."""
    made = cli.Parser("doctor", description=DESCRIPTION, examples=EXAMPLES)
    cli.add_config(made, default=DEFAULT_CONFIG)
    made.add_argument("--model", metavar="NAME", help="checkpoint (default: trainer.model in the file)")
    made.add_argument("--engine", type=cli.address, metavar="URL", help="an SGLang server or router to look at, too")
    made.add_argument(
        "--python", metavar="PATH", help="the Python that has slime or miles (default: $ORL_TRAINER_PYTHON, or on PATH)"
    )
    made.add_argument("--full", action="store_true", help="show the whole first prompt")
    made.add_argument(
        "--timeout", type=cli.positive, default=SECONDS, metavar="S", help=f"seconds for each check ({SECONDS})"
    )
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print the page."""
    from orl_launcher.doctor.report import Page

    page = Page(cli.console(), arguments.timeout)
    config = _configuration(page, arguments)
    if config is not None:
        _examine(page, config, arguments)
    return 0 if page.conclude() else cli.EXIT_FAILED


def _configuration(page: Page, arguments: argparse.Namespace) -> RunConfig | None:
    """The configuration; without one, nothing else can be looked at."""
    from orl_rollout.results.outcome import load_reward
    from orl_rollout.run_folder.config_file import dated
    from orl_rollout.secrets.secrets import Scrubber

    from orl_launcher.doctor.report import Verdict

    page.group("configuration")
    model = [f"trainer.model={quoted(arguments.model)}"] if arguments.model else []
    try:
        config = dated(cli.config_of(arguments, model))
    except OrlError as exc:
        page.say(Verdict.FAILED, str(exc))
        page.say(Verdict.UNCHECKED, "everything else, for there is no configuration")
        return None
    page.scrubber = Scrubber.of(config)
    page.say(Verdict.OK, f"{arguments.config}: trainer {config.trainer.backend}, {', '.join(config.environments)}")
    if (reward := config.reward) and page.attempt("reward", lambda: load_reward(reward)):
        page.say(Verdict.OK, f"reward: {reward} is there")
    return config


def _examine(page: Page, config: RunConfig, arguments: argparse.Namespace) -> None:
    from orl_launcher.doctor.engine import check_engine
    from orl_launcher.doctor.environments import check_secrets
    from orl_launcher.doctor.report import Verdict
    from orl_launcher.doctor.trainer import check_trainer

    check_secrets(page, config)
    opened = _environments(page, config)
    page.group("tokenizer")
    reader, config = _tokenizer(page, config)
    page.group("first prompt")
    ids = _prompt(page, config, opened, reader, full=arguments.full)
    page.group("engine")
    if arguments.engine:
        check_engine(page, config, arguments.engine, ids)
    else:
        page.say(Verdict.UNCHECKED, "a trainer brings its own; --engine URL looks at one that runs")
    page.group("trainer")
    check_trainer(page, config, arguments.python)


def _environments(page: Page, config: RunConfig) -> Opened | None:
    from orl_launcher.doctor.environments import check_environments
    from orl_launcher.doctor.report import Verdict

    page.group("environments")
    with ExitStack() as stack:
        try:
            reachable, missing = stack.enter_context(playground(config)), ()
        except OrlError as exc:
            reachable, missing = config, served_here(config)
            page.say(Verdict.FAILED, f"{', '.join(missing)}: {exc}")
        return check_environments(page, reachable, missing=missing)


def _tokenizer(page: Page, config: RunConfig) -> tuple[Reader | None, RunConfig]:
    """Who reads for the model, and the configuration with the model's path where it is one of the playground's."""
    from orl_launcher.doctor.model import check_tokenizer
    from orl_launcher.doctor.report import Verdict

    model = config.trainer.model or "model"
    ready = page.attempt(model, lambda: is_made(config))
    if ready is False:
        page.say(Verdict.UNCHECKED, f"{model}: made when `orl train` or `orl rollout` first needs it")
    made = page.attempt(model, lambda: warm_model(config)[0]) if ready else None
    return (check_tokenizer(page, made), made) if made else (None, config)


def _prompt(
    page: Page, config: RunConfig, opened: Opened | None, reader: Reader | None, *, full: bool
) -> tuple[int, ...]:
    from orl_launcher.doctor.model import check_prompt
    from orl_launcher.doctor.report import Verdict

    if opened is None or reader is None:
        page.say(Verdict.UNCHECKED, "it takes an environment that opens and a tokenizer that is certified")
        return ()
    return check_prompt(page, config, opened, reader, full=full)
