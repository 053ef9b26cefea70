"""`orl upload`: send the rollouts of a journal that OpenReward does not have yet."""

from __future__ import annotations

import argparse
from pathlib import Path

from orl_core import ConfigError, OrlError, RunConfig, load_config
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.record import has_journal

from orl_launcher import cli, invocation
from orl_launcher.playground import reachable

REST_SECONDS = 60  # after a training, for what its trainer did not send

DESCRIPTION = """\
Upload the rollouts that were not sent during the run, because OpenReward could not be reached or the run was killed.
Rollouts that were sent before are skipped, so the command may be repeated. It needs OPENREWARD_API_KEY.
"""
EXAMPLES = """\
  orl upload runs/NAME
  orl upload runs/NAME --seconds 3600
  orl upload runs/NAME --set rollout.upload=true     also rollouts of your own environments
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl upload`."""
    options.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    options.add_argument("--seconds", type=cli.positive, default=600, metavar="N", help="time limit (default: 600)")
    cli.add_overrides(options)


def run(arguments: argparse.Namespace) -> int:
    """Upload, and print the counts."""
    from orl_rollout.episodes.uploader import uploads

    config = reachable(load_config(arguments.run / "config.json", arguments.overrides))
    folder = Path(config.rollout.journal or arguments.run)
    if not has_journal(folder):
        raise ConfigError(f"{folder}: no journal here. Give the folder of a run")
    if not any(uploads(config, name) for name in config.environments):
        advice = "Set OPENREWARD_API_KEY. For environments of your own, give --set rollout.upload=true"
        raise ConfigError(f"no environment of this run is uploaded. {advice}")
    return 0 if _send(folder, config, arguments.seconds) else cli.EXIT_FAILED


def send_rest(config: RunConfig, folder: Path) -> None:
    """Send what the trainer of the run in `folder` left over, in REST_SECONDS at most; after a signal only say how."""
    from orl_rollout.episodes.uploader import unsent, uploads

    config, console = reachable(config), cli.console()
    journal = Path(config.rollout.journal or folder)
    finished = False
    try:
        if not any(uploads(config, name) for name in config.environments) or not unsent(journal):
            finished = True
        elif not interrupt.received():
            console.print(f"sending rollouts to OpenReward, {REST_SECONDS} s at most", style="dim")
            finished = _send(journal, config, REST_SECONDS)
    except OrlError as fault:  # the end of the training itself counts
        console.print(f"uploads: {fault}")
    finally:
        if not finished:
            console.print(f"To send the rest: {invocation()} upload {folder}")


def _send(journal: Path, config: RunConfig, seconds: float) -> bool:
    """Send the rollouts of a journal, and print the counts. Return whether all were sent."""
    from orl_rollout.episodes.uploader import Uploader

    uploader = Uploader(journal, config)
    finished = False
    try:
        finished = interrupt.result_of(interrupt.on_thread(lambda: uploader.close(seconds)))
    finally:
        counts = uploader.counts
        others = {
            "refused by the platform": counts.refused,
            "not sent because they contain a secret": counts.withheld,
            "unreadable": counts.broken,
        }
        words = [f"{counts.sent} rollouts sent", *(f"{count} {what}" for what, count in others.items() if count)]
        cli.console().print(", ".join(words) + ("" if finished else "; not all of them"))
    return finished
