"""`orl train` on a cluster: check the command line, run the trainer's train.py in its own Python, write the summary.

Nothing of a trainer is imported or named: its Python is asked (`probe`) and run. An adapter makes the Command. Secrets
reach the trainer's workers by inherited environment alone (law L6).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct, field, structs
from orl_core.config.yaml import read
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.logs import logger_of, shown
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.checkpoint import note_saved
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.summary import Summary, SummaryFile
from orl_rollout.run_folder.tracking import WANDB_KEY, tracking_of
from orl_rollout.secrets.entries import unset_in
from orl_rollout.signals import interrupt

from orl_cluster.launch import preflight, probe, process
from orl_cluster.launch.argv import shell_text, value_of, without
from orl_cluster.launch.eval_sets import write_eval_sets
from orl_cluster.launch.installation import find_installation
from orl_cluster.launch.layout import Installation, LaunchRequest, layout_of
from orl_cluster.launch.probe import CUSTOM_CONFIG, WORKING_FOLDER, Findings
from orl_cluster.launch.ray import environment_for, ray_cluster, several_nodes, unclosable
from orl_cluster.launch.ray_address import ray_address
from orl_cluster.launch.required_env import RequiredEnv, needs_of, secrets_in_config
from orl_cluster.launch.rows import check_rows

logger = logger_of("orl")

TENSORBOARD = "TENSORBOARD_DIR"  # the variable by which the trainers find the folder
LESS_MEMORY = "these lower memory use: --max-tokens-per-gpu, --max-context-len, fewer `max_turns`; after `--`: "
MEGATRON_MEMORY = f"{LESS_MEMORY}--context-parallel-size, --sglang-mem-fraction-static 0.5, --optimizer-cpu-offload"


class Command(Struct, frozen=True, kw_only=True):
    """Arguments of the trainer's train.py, and the `environment` beside what is inherited.

    `files` are written before it starts. `unknown` is the message for an option `{}` that nothing there knows; `memory`
    says what lowers memory use. `problems` keep it from running on this machine; `notes` are what else its user should
    know.
    """

    request: LaunchRequest
    argv: tuple[str, ...]
    environment: dict[str, str]
    unknown: str
    memory: str
    files: Mapping[Path, bytes] = field(default_factory=dict[Path, bytes])
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        script = "train_async.py" if self.request.trainer.asynchronous else "train.py"
        installation = self.request.installation
        return [installation.python, str(Path(installation.found.root) / script), *self.argv]


class ClusterTrainer(Struct, frozen=True, kw_only=True):
    """The entry point of an adapter: `command_of` makes the command line of the trainer `name`."""

    name: str
    command_of: Callable[[Installation, Run], Command]

    def plan(self, run: Run) -> Plan:
        """Return the command that `train` would run, for a shell.

        Raises:
            ConfigError: no such trainer, an option that nothing knows, or sizes that do not fit together.
        """
        command = self._checked(run)
        shown = shell_text(command.environment, command.words[:2], command.argv)
        return Plan(command=shown, problems=command.problems, notes=command.notes)

    def train(self, run: Run) -> None:
        """Train to the end. The output goes to trainer.log in the run's folder, the numbers to metrics.jsonl.

        Raises:
            ConfigError: the run cannot start; one line says why.
            OrlError: the trainer ended with an error; names the last one in its log.
        """
        _run_to_end(self._checked(run))

    def _checked(self, run: Run) -> Command:
        installation = find_installation(self.name, run.config.trainer, run.python)
        return _check(_with_settings(self.command_of(installation, run)))


def _with_settings(command: Command) -> Command:
    """Return `command` with the variables of its user's settings, beside the trainer's own."""
    run = command.request.run
    folder = os.environ.get(TENSORBOARD) or str((run.folder / "tensorboard").absolute())
    board = {TENSORBOARD: folder} if run.config.trainer.tensorboard else {}
    return structs.replace(command, environment={**command.request.installation.path, **command.environment, **board})


def request_of(installation: Installation, run: Run, *, trains_in_parallel: bool = True) -> LaunchRequest:
    """Return the input of the adapter's command line; see `layout_of`."""
    trainer = run.config.trainer
    layout = layout_of(trainer, installation.found.gpus, trains_in_parallel=trains_in_parallel)
    return LaunchRequest(run=run, installation=installation, layout=layout, tracking=tracking_of(trainer))


def _check(command: Command) -> Command:
    """Return `command` with the findings of the trainer's own parser and of this machine.

    Raises:
        ConfigError: an option that no parser knows, or a row of the task file that cannot be played.
    """
    request = command.request
    run, installation = request.run, request.installation
    # A dry run prepares no file; a prepared one holds tasks alone.
    plain_rows = check_rows(run.task_data, run.config, command.argv) if run.task_data.is_file() else 0
    scoring = preflight.scoring_notes(request, plain_rows)
    told = tuple(filter(None, [*command.notes, request.tracking.note, *scoring, *preflight.unevaluated(command.argv)]))
    if installation.missing:
        unseen = (
            f"not checked by {installation.trainer}: options, checkpoints, and the shape of the model, left out here"
        )
        return structs.replace(command, problems=(installation.missing,), notes=(*told, unseen))
    with TemporaryDirectory() as folder:  # the run's own file need not be there yet
        written = Path(folder) / "custom.json"
        written.write_bytes(_custom_config(request))
        argv = [*without(command.argv, CUSTOM_CONFIG), CUSTOM_CONFIG, str(written)]
        found = probe.ask(installation.trainer, installation.python, argv, _environment(command))
    for name, hint in found.unknown.items():
        raise ConfigError(f"{command.unknown.format(name)}{hint}")
    if found.reward:
        raise ConfigError(f"{installation.python}: {found.reward}")
    problems = [
        *preflight.absent_model(request),
        *_lacking(command, found),
        *preflight.untracked(request),
        *([found.obstacle] if found.obstacle else []),
    ]
    notes = [*told, *unset_in(run.config), *preflight.joined()]
    if not found.complete:
        notes.append(f"not checked by the parser of {installation.trainer}: {found.why}")
    elif found.why:
        problems.append(found.why)
    return structs.replace(command, problems=tuple(problems), notes=tuple(notes))


def _run_to_end(command: Command) -> None:
    if command.problems:
        raise ConfigError(command.problems[0])
    for note in command.notes:
        logger.warning("%s", note)
    request, folder = command.request, command.request.run.folder
    trainer, python = request.installation.trainer, request.installation.python
    log = folder / "trainer.log"
    for path, content in {**command.files, request.custom_config: _custom_config(request)}.items():
        path.write_bytes(content)
    write_eval_sets(request.run)
    environment, needs = _environment(command), _needs(command)
    ending: dict[str, Any] = {}
    summary = SummaryFile(folder, lambda: _summary_of(command))
    try:
        with (
            interrupt.listening(),
            interrupt.notified(summary.interrupted),
            ray_cluster(python, environment, gpus=request.layout.per_node, log=folder / "ray.log", needs=needs) as ray,
        ):
            code = process.run(command.words, ray, log=log, hidden=needs.names)
        if code:
            error, lacks_memory = process.failure_of(log)
            memory = f"; {command.memory}" if lacks_memory else ""
            raise OrlError(f"{trainer} ended with exit code {code}: {error} (see {log}){memory}")
    except KeyboardInterrupt:
        ending = {"interrupted": True}
        raise
    except OrlError as error:
        ending = {"error": shown(str(error))}
        raise
    finally:
        summary.end(ending)
        with boundary(OrlError, f"writing the note beside the checkpoint in {request.save}"):
            note_saved(request.save, trainer, value_of(command.argv, "--hf-checkpoint") or "")


def _lacking(command: Command, found: Findings) -> list[str]:
    """Return the faults of this machine for a cluster of the run's own; a cluster that runs already is asked later."""
    if ray_address(os.environ):
        return []
    layout, needs = command.request.layout, _needs(command)
    if layout.nodes > 1:
        return [several_nodes(layout.nodes, layout.per_node, needs)]
    there, asked = min(found.gpus, layout.per_node), max(layout.total, layout.per_node)
    lacking = [f"it has {there} GPUs but the run needs {asked}: lower --num-gpus"] if there < asked else []
    if missing := needs.missing({name for name, value in _environment(command).items() if value}):
        lacking.append(f"not set in the environment: {', '.join(missing)}")
    return [*lacking, *unclosable(found.ray)]


def _environment(command: Command) -> dict[str, str]:
    """Return the environment of the trainer, and of the workers of a cluster of its own."""
    given = secrets_in_config(command.request.run.config)
    return environment_for(command.request.installation.python, {**given, **command.environment})


def _needs(command: Command) -> RequiredEnv:
    """Return the variables that the workers need. A user who is logged in at Weights & Biases needs no key there."""
    request = command.request
    tracked = request.tracking.mode == "online" and bool(os.environ.get(WANDB_KEY))
    package = f"orl_{request.installation.trainer}"
    return needs_of(request.run.config, package, tracked=tracked, settings=command.environment)


def _custom_config(request: LaunchRequest) -> bytes:
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


def _summary_of(command: Command) -> Summary:
    run = command.request.run
    made = Summary.of(run.config, metrics_log.read(run.folder / "metrics.jsonl"))
    return structs.replace(
        made,
        # The log hook of a trainer times the rollouts of a step, not the training after them.
        seconds_per_step=msgspec.UNSET,
        rollout_seconds_per_step=made.seconds_per_step,
        seconds_total=round(time.monotonic() - run.started, 1),
        command=command.words,
        **run.facts,
    )
