"""`orl train` on a cluster: check the command line, run the trainer's train.py in its own Python, write the summary.

Nothing of a trainer is imported or named: its Python is asked (`probe`) and run. An adapter makes the Command. Secrets
reach the trainer's workers by inherited environment alone (law L6).
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct, structs
from orl_core.config.yaml import read
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.logs import logger_of, shown
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.summary import Summary, SummaryFile
from orl_rollout.signals import children, interrupt

from orl_cluster.launch import probe, process
from orl_cluster.launch.argv import nearest, number, value_of, without
from orl_cluster.launch.find_python import find_python
from orl_cluster.launch.layout import Installation, LaunchRequest, layout_of
from orl_cluster.launch.probe import Findings
from orl_cluster.launch.ray import ADDRESS, environment_for, hidden_of, ray_cluster, several_nodes, unclosable
from orl_cluster.launch.required_env import WANDB_KEY, RequiredEnv, needs_of, secrets_in_config
from orl_cluster.launch.rows import check_rows
from orl_cluster.launch.trainer_defaults import CUSTOM_CONFIG, MODEL

logger = logger_of("orl")

SHAPE_SECONDS = 120.0  # it may import the trainer's package
LESS_MEMORY = "these lower memory use: --max-tokens-per-gpu, --max-context-len, fewer `max_turns`; after `--`: "
MEGATRON_MEMORY = f"{LESS_MEMORY}--context-parallel-size, --sglang-mem-fraction-static 0.5, --optimizer-cpu-offload"


class Command(Struct, frozen=True, kw_only=True):
    """Arguments of the trainer's train.py, and the `environment` beside what is inherited.

    `unknown` is the message for an option `{}` that nothing there knows; `memory` says what lowers memory use.
    `problems` keep it from running on this machine; `notes` are what else its user should know.
    """

    request: LaunchRequest
    argv: tuple[str, ...]
    environment: dict[str, str]
    unknown: str
    memory: str
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
        return Plan(command=_shell_text(command), problems=command.problems, notes=command.notes)

    def train(self, run: Run) -> None:
        """Train to the end. The output goes to trainer.log in the run's folder, the numbers to metrics.jsonl.

        Raises:
            ConfigError: the run cannot start; one line says why.
            OrlError: the trainer ended with an error; names the last one in its log.
        """
        _run_to_end(self._checked(run))

    def _checked(self, run: Run) -> Command:
        python = find_python(self.name, run.python)
        about = probe.ask(self.name, python, [], environment_for(python, {}))
        if not about.root:
            raise ConfigError(f"{python}: {self.name} is installed without train.py: install it from a checkout (-e)")
        return _check(self.command_of(Installation(trainer=self.name, python=python, found=about), run))


def request_of(installation: Installation, run: Run, *, trains_in_parallel: bool = True) -> LaunchRequest:
    """Return the input of the adapter's command line; see `layout_of`."""
    trainer = run.config.trainer
    layout = layout_of(trainer, installation.found.gpus, trains_in_parallel=trains_in_parallel)
    online = trainer.wandb_mode != "disabled" if trainer.wandb_mode else bool(os.environ.get(WANDB_KEY))
    return LaunchRequest(run=run, installation=installation, layout=layout, tracked=online)


def model_shape(
    request: LaunchRequest, suffix: str, command_of: Callable[[Path], list[str]], separator: str | None = None
) -> list[str]:
    """Return the options of the model's shape: the words that `command_of(script)` prints between `separator`.

    The script is the one that `--model-args` names, a path or a name in scripts/models of the trainer; else the one
    that is named like the model, whatever the case.

    Raises:
        ConfigError: none is named, there is no such file, or it gives no options.
    """
    script = _model_script(request, suffix).absolute()
    with boundary(ConfigError, f"--model-args {script}"):
        asked = children.run(command_of(script), timeout=SHAPE_SECONDS)
    words = [word for word in asked.stdout.split(separator) if word]
    if asked.returncode or not words:
        why = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"--model-args {script}: it gives no options of a model: {why}")
    return words


def _model_script(request: LaunchRequest, suffix: str) -> Path:
    trainer, folder = request.trainer, Path(request.installation.found.root, "scripts", "models")
    known = sorted(script.stem for script in folder.glob(f"*{suffix}"))
    model = Path(trainer.model or MODEL).name.lower()
    named = trainer.model_args or next((script for script in known if script.lower() == model), "")
    if not named:
        raise ConfigError(
            f"--model-args: name the script with the shape of {trainer.model}: a path, or one of {', '.join(known)}"
        )
    name = Path(named).name.removesuffix(suffix)
    script = Path(named) if Path(named).is_file() else folder / f"{name}{suffix}"
    if not script.is_file():
        near = nearest(name, known)
        raise ConfigError(f"--model-args {named}: no such script{f'; did you mean {near}?' if near else ''}")
    return script


def _check(command: Command) -> Command:
    """Return `command` with the findings of the trainer's own parser and of this machine.

    Raises:
        ConfigError: an option that no parser knows, or a row of the task file that cannot be played.
    """
    request = command.request
    run, installation = request.run, request.installation
    if run.task_data.is_file():  # a dry run prepares none
        check_rows(run.task_data, run.config, command.argv)
    with TemporaryDirectory() as folder:  # the run's own file need not be there yet
        written = Path(folder) / "custom.json"
        written.write_bytes(_custom_config(request))
        argv = [*without(command.argv, CUSTOM_CONFIG), CUSTOM_CONFIG, str(written)]
        found = probe.ask(installation.trainer, installation.python, argv, _environment(command))
    for name, near in found.unknown.items():
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{command.unknown.format(name)}{hint}")
    problems = [*_lacking(command, found), *([found.obstacle] if found.obstacle else [])]
    notes = [*command.notes, *_unevaluated(command.argv)]
    if not found.complete:
        notes.append(f"not checked by the parser of {installation.trainer}: {found.why}")
    elif found.why:
        problems.append(found.why)
    return structs.replace(command, problems=tuple(problems), notes=tuple(notes))


def _shell_text(command: Command) -> str:
    """Write the command for people and for a shell, one option a line."""
    first = " ".join(f"{name}={shlex.quote(value)}" for name, value in command.environment.items())
    lines = [first] if first else []
    lines.append(f"  {shlex.join(command.words[:2])}")
    option: list[str] = []
    for word in [*command.argv, "--"]:
        if word.startswith("--") and option:
            lines.append(f"    {shlex.join(option)}")
            option = []
        option.append(word)
    return " \\\n".join(lines)


def _run_to_end(command: Command) -> None:
    if command.problems:
        raise ConfigError(command.problems[0])
    for note in command.notes:
        logger.warning("%s", note)
    request, folder = command.request, command.request.run.folder
    trainer, python = request.installation.trainer, request.installation.python
    log = folder / "trainer.log"
    request.custom_config.write_bytes(_custom_config(request))
    environment, needs = _environment(command), _needs(command)
    ending: dict[str, Any] = {}
    summary = SummaryFile(folder, lambda: _summary_of(command))
    try:
        with (
            interrupt.listening(),
            interrupt.notified(summary.interrupted),
            ray_cluster(python, environment, gpus=request.layout.per_node, log=folder / "ray.log", needs=needs) as ray,
        ):
            code = process.run(command.words, ray, log=log, hidden=hidden_of(needs))
        if code:
            memory = f"; {command.memory}" if process.ran_out_of_memory(log) else ""
            raise OrlError(f"{trainer} ended with exit code {code}: {process.last_error(log)} (see {log}){memory}")
    except KeyboardInterrupt:
        ending = {"interrupted": True}
        raise
    except OrlError as error:
        ending = {"error": shown(str(error))}
        raise
    finally:
        summary.end(ending)


def _lacking(command: Command, found: Findings) -> list[str]:
    """Return the faults of this machine for a cluster of the run's own; a cluster that runs already is asked later."""
    if os.environ.get(ADDRESS):
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


def _unevaluated(argv: Sequence[str]) -> list[str]:
    """Note a last step without evaluation: trainers evaluate every so many steps, and not once more at the end."""
    steps, interval = (number(value_of(argv, name), name) for name in ("--num-rollout", "--eval-interval"))
    if not steps or not interval or interval < 1 or steps % interval == 0:
        return []
    return [f"the last step is not evaluated: --num-rollout {steps} is no multiple of --eval-interval {interval}"]


def _needs(command: Command) -> RequiredEnv:
    """Return the variables that the workers need. A user who is logged in at Weights & Biases needs no key there."""
    request = command.request
    tracked = request.tracked and request.trainer.wandb_mode != "offline" and bool(os.environ.get(WANDB_KEY))
    package = f"orl_{request.installation.trainer}"
    return needs_of(request.run.config, package, tracked=tracked, settings=command.environment)


def _custom_config(request: LaunchRequest) -> bytes:
    """Write the file of `--custom-config-path`: the keys of the user's own file of that option, and ours."""
    own = request.value(CUSTOM_CONFIG)
    if own == "":
        raise ConfigError(f"{CUSTOM_CONFIG}: expected a file after it")
    tree = read(Path(own)) if own else {}
    run = request.run
    merged = {**tree, "orl_config": run.config.public(), "orl_folder": str(run.folder.absolute())}
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
