"""A trainer's command: how GPUs are shared, its arguments and environment, its files, and evaluation sets.

Without a trainer's name: an adapter and `trainer_defaults` write the arguments from a LaunchRequest.

The evaluation sets are the held-out tasks of each environment and split, in a file of their own. Trainers log each set
by its name, `Organization/Environment/split`. A set without tasks is left out, because trainers divide by the number of
its rewards.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct, field, structs
from orl_core import ConfigError, RunConfig, Task, TrainerConfig, row_of
from orl_core.config.yaml import read
from orl_core.estimators import OPTION, Estimator, estimator_named
from orl_rollout.edge.files import replace
from orl_rollout.run_folder.contract import CHECKPOINT, Run
from orl_rollout.run_folder.tracking import WANDB_KEY, Tracking
from orl_rollout.tasks.file import read_tasks

from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.machine.probe import WORKING_FOLDER
from orl_cluster.launch.machine.ray_cluster import environment_for
from orl_cluster.launch.machine.required_env import RequiredEnv, needs_of, secrets_in_config
from orl_cluster.launch.options import (
    CONTEXT_PARALLEL,
    CUSTOM_CONFIG,
    DEFAULTS,
    PIPELINE_PARALLEL,
    ClusterOptions,
    cluster_of,
    merge,
    names_in,
    number,
    option_name,
    value_of,
)

GPUS, TENSOR_PARALLEL = 4, 4


class Layout(Struct, frozen=True, kw_only=True):
    """The sharing of GPUs: `actor` and `rollout` GPUs; with `colocate` they are the same."""

    nodes: int
    per_node: int
    actor: int
    rollout: int
    colocate: bool
    tensor_parallel: int

    @property
    def total(self) -> int:
        """The GPUs of all nodes together."""
        return self.actor * self.nodes + (0 if self.colocate else self.rollout)

    @property
    def machines(self) -> int:
        """The nodes that hold all GPUs: those that train, and those of engines."""
        return -(-self.total // self.per_node)


def splits_of(run: Run) -> int:
    """Return the number of GPUs over which the user's context and pipeline parallelism split a sequence and a model."""
    words = merge({}, run.config.trainer.own_flags, run.extra)
    return math.prod(number(words, name) for name in (CONTEXT_PARALLEL, PIPELINE_PARALLEL))


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """Input of a command line. `tracking` says how the run is reported to Weights & Biases.

    `mixture` tells whether the model is known to be a mixture of experts.
    """

    run: Run
    installation: Installation
    layout: Layout
    tracking: Tracking = Tracking()
    mixture: bool = False

    @property
    def trainer(self) -> TrainerConfig:
        """The options that all trainers obey, and our defaults."""
        return self.run.config.trainer.with_defaults(DEFAULTS)

    @property
    def cluster(self) -> ClusterOptions:
        """The options that trainers on a cluster share."""
        return cluster_of(self.run.config.trainer)

    @property
    def names(self) -> list[str]:
        """The options that the user gave by the trainer's own names."""
        return [*(option_name(name) for name in self.trainer.own_flags), *names_in(self.run.extra)]

    @property
    def custom_config(self) -> Path:
        """The file of `--custom-config-path`, which hands the configuration over to the workers."""
        return (self.run.folder / f"{self.installation.trainer}.json").absolute()

    @property
    def save(self) -> Path:
        """The folder for checkpoints."""
        return Path(self.value("--save") or self.cluster.save or self.run.folder / CHECKPOINT).absolute()

    @property
    def loads_own(self) -> bool:
        """Tell whether the run continues from the checkpoint in its own folder, if there is one."""
        load = self.value("--load") or self.trainer.load
        return not load or Path(load).expanduser().absolute() == self.save

    @property
    def estimator(self) -> Estimator:
        """The advantage estimator.

        Raises:
            ConfigError: orl does not know it.
        """
        return estimator_named(self.value(OPTION) or self.trainer.advantage_estimator or "")

    @property
    def words(self) -> list[str]:
        """The user's own options of the trainer: those in the file, then those after `--`."""
        return merge({}, self.trainer.own_flags, self.run.extra)

    def value(self, name: str) -> str | None:
        """Return the user's own value of the trainer's option `name`: after `--`, else in the file; "" for a switch.

        A flag that the file takes away (false, null) counts as not given.
        """
        return value_of(self.words, name)


def layout_of(
    config: ClusterOptions, available: int, *, trains_in_parallel: bool = True, other_splits: int = 1
) -> Layout:
    """Return the layout that the options ask for, on a machine where `found` GPUs were found (0: not known).

    `trains_in_parallel` tells whether `--tp` splits the model in training too, and not in the engines alone.
    `other_splits` is the number of GPUs over which context and pipeline parallelism split each tensor-parallel part.
    """
    divided = config.actor_gpus is not None or config.rollout_gpus is not None or config.asynchronous
    nodes = config.actor_nodes or 1
    gpus = config.num_gpus or available or GPUS
    if divided and (config.actor_gpus is None or config.rollout_gpus is None):
        raise ConfigError("--async and divided GPUs need two numbers: give both --actor-gpus and --rollout-gpus")
    actor = config.actor_gpus or gpus
    rollout = config.rollout_gpus or gpus * nodes
    split = actor if trains_in_parallel or not divided else rollout  # a tensor-parallel group has to fit into it
    training = actor * nodes
    sizes = [size for size in (TENSOR_PARALLEL, 2, 1) if split % size == 0 and rollout % size == 0]
    tensor = config.tp or next((size for size in sizes if training % (size * other_splits) == 0), sizes[-1])
    if split % tensor or rollout % tensor:
        raise ConfigError(f"--tp {tensor} does not divide {actor} training and {rollout} engine GPUs: change --tp")
    if trains_in_parallel and training % (tensor * other_splits):
        raise ConfigError(
            f"tensor parallel {tensor} x context and pipeline parallel {other_splits} does not divide {training} "
            "training GPUs: change --tp, or --context-parallel-size and --pipeline-model-parallel-size after `--`"
        )
    per_node = config.num_gpus or (available or actor if divided else gpus)
    return Layout(
        nodes=nodes, per_node=per_node, actor=actor, rollout=rollout, colocate=not divided, tensor_parallel=tensor
    )


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
