"""A trainer's command: arguments, environment, the file of --custom-config-path, and evaluation sets.

Of these are the evaluation sets: the held-out tasks of each environment and split, in a file of their own. Trainers log
each set by its name, `Organization/Environment/split`. A set without tasks is left out, because trainers divide by the
number of its rewards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct, field, structs
from orl_core import ConfigError, RunConfig, Task, row_of
from orl_core.config.yaml import read
from orl_rollout.edge.files import replace
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.tracking import WANDB_KEY
from orl_rollout.tasks.file import read_tasks

from orl_cluster.launch.command.layout import LaunchRequest
from orl_cluster.launch.machine.probe import WORKING_FOLDER
from orl_cluster.launch.machine.ray_cluster import environment_for
from orl_cluster.launch.machine.required_env import RequiredEnv, needs_of, secrets_in_config
from orl_cluster.launch.options import CUSTOM_CONFIG


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
    return msgspec.json.format(msgspec.json.encode({**tree, **ours}), indent=2)


def eval_options(run: Run) -> tuple[str | Path, ...]:
    """Return names and files of the sets, in turn. A dry run has no tasks yet: then all that are configured."""
    if run.eval_data is None:
        return ()
    names = list(_sets(run.eval_data, run)) if run.eval_data.is_file() else _configured(run)
    return tuple(chain.from_iterable((name, _path(run, name)) for name in names))


def write_eval_sets(run: Run) -> None:
    """Write the files of the sets."""
    if run.eval_data is None:
        return
    for name, tasks in _sets(run.eval_data, run).items():
        path = _path(run, name)
        path.parent.mkdir(exist_ok=True)
        replace(path, b"".join(msgspec.json.encode(row_of(task), order="sorted") + b"\n" for task in tasks))


def _sets(eval_data: Path, run: Run) -> dict[str, Sequence[Task]]:
    """Return the tasks of each set that has any, the sets in the order of the configuration."""
    sets: dict[str, list[Task]] = {name: [] for name in _configured(run)}
    for task in read_tasks(eval_data, run.config):
        sets.setdefault(_name(task.env_name, task.split), []).append(task)
    return {name: tasks for name, tasks in sets.items() if tasks}


def _configured(run: Run) -> list[str]:
    environments = run.config.environments.items()
    return list(dict.fromkeys(_name(name, split) for name, one in environments for split in one.eval_splits))


def _name(environment: str, split: str) -> str:
    return f"{environment}/{split}"


def _path(run: Run, name: str) -> Path:
    return (run.folder / "eval_sets" / f"{quote(name, safe='')}.jsonl").absolute()
