"""`orl upload`: send to OpenReward what a run could not, from its journal, from where its uploads stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from orl_launcher import cli

if TYPE_CHECKING:
    from orl_rollout.upload.uploader import Counts

DESCRIPTION = """\
Send the rollouts of a run to OpenReward that were not sent while it ran: the platform was away, or the run was killed.
What was sent before is left out, so the command may be repeated. It needs OPENREWARD_API_KEY.
"""
EXAMPLES = """\
  orl upload runs/NAME
  orl upload runs/NAME --seconds 3600
  orl upload runs/NAME --set rollout.upload=true     also what was played on environments of your own
"""


def parser() -> cli.Parser:
    """The options of `orl upload`."""
    made = cli.Parser("upload", description=DESCRIPTION, examples=EXAMPLES)
    made.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    made.add_argument(
        "--seconds", type=cli.positive, default=600, metavar="N", help="try for at most so long (default: 600)"
    )
    cli.add_overrides(made)
    return made


def run(arguments: argparse.Namespace) -> int:
    """Send it, and say what became of it."""
    from orl_core.config import load_config
    from orl_core.errors import ConfigError
    from orl_rollout.run_folder.record import has_journal
    from orl_rollout.signals import interrupt
    from orl_rollout.upload.uploader import Uploader, uploads

    from orl_launcher.playground import reachable

    config = reachable(load_config(arguments.run / "config.json", arguments.overrides))
    folder = Path(config.rollout.journal or arguments.run)
    if not has_journal(folder):
        raise ConfigError(f"{folder}: no journal here")
    if not any(uploads(config, name) for name in config.environments):
        raise ConfigError(
            "nothing here is to be uploaded: set OPENREWARD_API_KEY, and --set rollout.upload=true where the "
            "environments are not the platform's own"
        )
    uploader = Uploader(folder, config)
    finished = False
    try:
        finished = interrupt.result_of(interrupt.on_thread(lambda: uploader.close(arguments.seconds)))
    finally:
        _tell(uploader.counts, finished=finished)
    return 0 if finished else cli.EXIT_FAILED


def _tell(counts: Counts, *, finished: bool) -> None:
    told = [f"{counts.sent} rollouts sent"]
    told += [f"{counts.refused} refused by the platform"] if counts.refused else []
    told += [f"{counts.withheld} kept back, which echo a secret"] if counts.withheld else []
    told += [f"{counts.broken} unreadable"] if counts.broken else []
    cli.console().print(", ".join(told) + ("" if finished else "; not all of them"), soft_wrap=True)
