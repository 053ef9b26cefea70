"""The check-up of a run, in the order in which a run needs things; a check runs whatever failed before it.

Nothing is written, trained or played.
"""

from __future__ import annotations

import argparse

from orl_core.config import RunConfig
from orl_core.errors import OrlError
from orl_rollout.results.outcome import load_reward
from orl_rollout.run_folder.config_file import dated
from orl_rollout.secrets.secrets import Scrubber

from orl_launcher import cli
from orl_launcher.doctor.engine import check_engine
from orl_launcher.doctor.environments import Opened, check_environments, check_secrets
from orl_launcher.doctor.model import Reader, check_prompt, check_tokenizer
from orl_launcher.doctor.report import Report, Verdict
from orl_launcher.doctor.trainer import check_trainer
from orl_launcher.playground import is_made, playground, served_here, warm_model
from orl_launcher.trainer_options import quoted


def check_up(arguments: argparse.Namespace) -> bool:
    """Print the page. Return whether no check failed."""
    page = Report(cli.console(), arguments.timeout)
    config = _configuration(page, arguments)
    if config is None:
        return page.conclude()
    check_secrets(page, config)
    page.group("environments")
    opened = _environments(page, config)
    page.group("tokenizer")
    reader, config = _tokenizer(page, config)
    page.group("first prompt")
    ids: tuple[int, ...] = ()
    if opened and reader:
        ids = check_prompt(page, config, opened, reader, full=arguments.full)
    else:
        page.say(Verdict.UNCHECKED, "needs an environment that opens and a certified tokenizer")
    page.group("engine")
    if arguments.engine:
        check_engine(page, config, arguments.engine, ids)
    else:
        page.say(Verdict.UNCHECKED, "the trainer starts its own. To check one that runs, give --engine URL")
    page.group("trainer")
    check_trainer(page, config, arguments.python)
    return page.conclude()


def _configuration(page: Report, arguments: argparse.Namespace) -> RunConfig | None:
    """Return the configuration; without one, nothing else can be checked."""
    page.group("configuration")
    model = [f"trainer.model={quoted(arguments.model)}"] if arguments.model else []
    try:
        config = dated(cli.config_of(arguments, model))
    except OrlError as exc:
        page.say(Verdict.FAILED, str(exc))
        page.say(Verdict.UNCHECKED, "everything else, because there is no configuration")
        return None
    page.scrubber = Scrubber.of(config)
    page.say(Verdict.OK, f"{arguments.config}: trainer {config.trainer.backend}, {', '.join(config.environments)}")
    if (reward := config.reward) and page.attempt("reward", lambda: load_reward(reward)):
        page.say(Verdict.OK, f"reward: {reward} is there")
    return config


def _environments(page: Report, config: RunConfig) -> Opened | None:
    try:
        with playground(config) as reachable:
            return check_environments(page, reachable)
    except OrlError as exc:
        missing = served_here(config)
        page.say(Verdict.FAILED, f"{', '.join(missing)}: {exc}")
        return check_environments(page, config, missing=missing)


def _tokenizer(page: Report, config: RunConfig) -> tuple[Reader | None, RunConfig]:
    """Return the reader for the model, and the configuration with a path for a model of the playground."""
    model = config.trainer.model or "model"
    ready = page.attempt(model, lambda: is_made(config))
    if ready is False:
        page.say(Verdict.UNCHECKED, f"{model}: made when `orl train` or `orl rollout` first needs it")
    made = page.attempt(model, lambda: warm_model(config)[0]) if ready else None
    return (check_tokenizer(page, made), made) if made else (None, config)
