"""The configuration of a command, resolved once: file, options, `--set`, trainer, date, checkpoints, and the name.

Every command reads the result. Only `playground.reachable` changes it later, because no address is known before.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import structs
from orl_core import ConfigError, RunConfig, load_config
from orl_core.config import RolloutConfig
from orl_core.config.agent import LOOPS_OWN
from orl_core.credentials import refuse_on_command_line
from orl_rollout.edge.secrets import Scrubber, refuse_in_words, refuse_repeats
from orl_rollout.logs import keep_out
from orl_rollout.run_folder.config_file import date_of, name_of

from orl_launcher import checkpoints, cli, invocation, trainers

CONFIGURED = ("trainer.", "rollout.", "agent")  # how the options that override the configuration are named


def resolve(
    arguments: argparse.Namespace,
    run: str = "",
    *,
    bare: Mapping[str, object] | None = None,
    model: Literal["unread", "found", "needed"] = "found",
) -> tuple[RunConfig, Path, str | None]:
    """Resolve the configuration of `--config`, the options that override it, and `--set`: the last one wins.

    The folder of the run, which is not made yet, comes with it, and the checkpoint to continue as the user names it.

    `bare` replaces the file if a command needs none. `run` is the default name of the folder, {} the configured name;
    without it, no run begins. An "unread" `model` may be no checkpoint.
    """
    extra = arguments.extra
    config = _read(arguments, bare)
    keep_out(Scrubber.of(config))
    trainer, name, folder = config.trainer, config.openreward_run_name, trainers.RUNS / config.openreward_run_name
    if model == "needed" and not trainer.model:
        raise cli.UsageError("no model. Give --model, or set trainer.model in the file")
    if run:
        folder = trainers.new_run(arguments.name, run.format(name), planned=getattr(arguments, "dry_run", False))
        name = name_of(config, (run == "{}" and trainer.wandb_run) or folder.name)
    begun = {} if model == "unread" else checkpoints.paths_of(trainer)
    backend = trainer.backend or cli.backend_of()
    config = structs.replace(
        config,
        chat_template_date=date_of(config),
        openreward_run_name=name,
        trainer=structs.replace(trainer, backend=backend, **begun),
    )
    if backend in trainers.installed():
        config = trainers.find_trainer(backend).resolve(config, extra)
    refuse_repeats(config)
    refuse_on_command_line(extra)
    refuse_in_words(config, extra)
    return config, folder, trainer.load


def _read(arguments: argparse.Namespace, bare: Mapping[str, object] | None) -> RunConfig:
    file: str | None = arguments.config
    options = {path: value for path, value in vars(arguments).items() if path.startswith(CONFIGURED)}
    if "agent" in options:  # the file's budgets of the built-in loop are replaced with it
        options |= {f"rollout.{name}": getattr(RolloutConfig(), name) for name in LOOPS_OWN}
    if file and not Path(file).exists():
        raise ConfigError(f"{file}: no such file. Give --config; `{invocation()} init` writes a file")
    return load_config(file, arguments.overrides, options, bare)
