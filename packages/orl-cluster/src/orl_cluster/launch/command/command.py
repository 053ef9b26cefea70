"""A trainer's command: its arguments, its environment, and the files that it reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field, structs
from orl_core.config import RunConfig
from orl_core.config.yaml import read
from orl_core.errors import ConfigError
from orl_rollout.run_folder.tracking import WANDB_KEY

from orl_cluster.launch.command.layout import LaunchRequest
from orl_cluster.launch.machine.probe import CUSTOM_CONFIG, WORKING_FOLDER
from orl_cluster.launch.machine.ray_cluster import environment_for
from orl_cluster.launch.machine.required_env import RequiredEnv, needs_of, secrets_in_config


class Command(Struct, frozen=True, kw_only=True):
    """Arguments of the trainer's train.py, and the `environment` in addition to the inherited one.

    `files` are written before it starts. `unknown` is the message for an option `{}` that nothing there knows; `memory`
    says what lowers memory use, `estimate` is the table of how much it takes. `problems` keep it from running on this
    machine; `notes` are what else its user should know.
    """

    request: LaunchRequest
    argv: tuple[str, ...]
    environment: dict[str, str]
    unknown: str
    memory: str
    files: Mapping[Path, bytes] = field(default_factory=dict[Path, bytes])
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    estimate: str = ""

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        script = "train_async.py" if self.request.cluster.asynchronous else "train.py"
        installation = self.request.installation
        return [installation.python, str(Path(installation.findings.root) / script), *self.argv]


def environment_of(command: Command) -> dict[str, str]:
    """Return the environment of the trainer, and of the workers of a cluster of its own."""
    secrets = secrets_in_config(command.request.run.config)
    return environment_for(command.request.installation.python, {**secrets, **command.environment})


def required_env(command: Command) -> RequiredEnv:
    """Return the needs of the workers. A user who is logged in at Weights & Biases needs no key there."""
    request = command.request
    tracked = request.tracking.mode == "online" and bool(os.environ.get(WANDB_KEY))
    package = f"orl_{request.installation.trainer}"
    needs = needs_of(request.run.config, package, tracked=tracked, settings=command.environment)
    return structs.replace(needs, paths=_paths(command), gpus=request.layout.total)


def _paths(command: Command) -> tuple[str, ...]:
    """Return the run's folder, what the command line names outside of it, and the user's modules, as far as here."""
    run = command.request.run
    folder = run.folder.absolute()
    named = [Path(word.partition("=")[2] if word.startswith("--") else word) for word in command.argv]
    named += modules_of(run.config)
    outside = [path for path in named if path.is_absolute() and folder not in path.parents and os.access(path, os.R_OK)]
    return tuple(dict.fromkeys(map(str, [folder, *outside])))


def modules_of(config: RunConfig) -> list[Path]:
    """Return where the working folder would hold the modules of reward function and agent: packages or files."""
    agent = config.agent_config
    functions = (config.reward, agent.function if agent else None)
    modules = [Path.cwd() / name.partition(":")[0].replace(".", "/") for name in functions if name]
    return [path for module in modules for path in (module, module.with_suffix(".py"))]


def custom_config(request: LaunchRequest) -> bytes:
    """Write the file of `--custom-config-path`: the keys of the user's own file of that option, and ours."""
    own = request.value(CUSTOM_CONFIG)
    if own == "":
        raise ConfigError(f"{CUSTOM_CONFIG}: expected a file after it")
    tree = read(Path(own)) if own else {}
    run = request.run
    ours = {
        "orl_config": run.config.public(),
        "orl_folder": str(run.folder.absolute()),
        WORKING_FOLDER: str(Path.cwd()),
    }
    merged = {**tree, **ours}
    return msgspec.json.format(msgspec.json.encode(merged), indent=2)
