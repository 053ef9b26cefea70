"""`orl train` on a cluster: all checked, the trainer's train.py run in its own Python, the run's figures written.

Nothing of a trainer is imported or named: the Python that has it is asked (`probe`) and run, and the adapter says in a
`Named` how to speak of it. An adapter makes the Command; `plan_of` shows what `run_to_end` does. Secrets reach the
trainer's workers by inherited environment alone (law L6).
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.config import TrainerConfig
from orl_core.config.yaml import read
from orl_core.errors import ConfigError, OrlError
from orl_rollout.logs import logger_of, shown
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.summary import Summary, SummaryFile
from orl_rollout.signals import interrupt

from orl_cluster.launch import probe, process
from orl_cluster.launch.argv import nearest, number, value_of, without
from orl_cluster.launch.find_python import find_python
from orl_cluster.launch.layout import Files, Layout, Request, given
from orl_cluster.launch.probe import Findings
from orl_cluster.launch.ray import ADDRESS, environment_for, hidden_of, ray_cluster, several_nodes, unclosable
from orl_cluster.launch.required_env import TRACKER, Needs, given_secrets, needs_of
from orl_cluster.launch.rows import check_rows
from orl_cluster.launch.trainer_defaults import CUSTOM_CONFIG, MODEL

logger = logger_of("orl")


class Named(Struct, frozen=True, kw_only=True):
    """A trainer in words. `unknown` says of an option `{}` that nothing there knows it, `memory` what lowers memory."""

    name: str
    unknown: str
    memory: str


class Command(Struct, frozen=True, kw_only=True):
    """What runs: `script` in the folder `root` with `argv`, and `environment` beside what is inherited.

    `problems` are what keeps it from running on this machine, `notes` what else its user should know.
    """

    trainer: Named
    python: str
    root: Path
    script: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    layout: Layout
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        return [self.python, str(self.root / self.script), *self.argv]


def located(trainer: str, run: Run) -> tuple[str, Findings]:
    """The Python that has the trainer of that name, and what it says of itself.

    Raises:
        ConfigError: no such Python, or no train.py beside the trainer.
    """
    python = find_python(trainer, run.python)
    about = probe.ask(trainer, python, [], environment_for(python, {}))
    if not about.root:
        raise ConfigError(f"{python}: {trainer} is installed without its train.py: install it from a checkout (-e)")
    return python, about


def request_of(trainer: str, run: Run, layout: Layout) -> Request:
    """What the adapter makes the command line of."""
    settings = run.config.trainer
    files = Files(
        task_data=run.task_data.absolute(),
        eval_data=run.eval_data.absolute() if run.eval_data else None,
        custom_config=_handed_over(trainer, run).absolute(),
        save=Path(given(settings, run.extra, "--save") or settings.save or run.folder / "checkpoint").absolute(),
    )
    return Request(config=run.config, files=files, layout=layout, extra=run.extra, tracked=_tracked(settings))


def checked(command: Command, run: Run) -> Command:
    """`command` with what the trainer's own parser, and this machine, say of it.

    Raises:
        ConfigError: an option that no parser knows, or a row of the task file that cannot be played.
    """
    if run.task_data.is_file():  # a dry run prepares none
        check_rows(run.task_data, run.config, command.argv)
    with TemporaryDirectory() as folder:  # the run's own file need not be there yet
        written = Path(folder) / "custom.json"
        written.write_bytes(_custom_config(run))
        argv = [*without(command.argv, CUSTOM_CONFIG), CUSTOM_CONFIG, str(written)]
        found = probe.ask(command.trainer.name, command.python, argv, _environment(command, run))
    for name, near in found.unknown.items():
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{command.trainer.unknown.format(name)}{hint}")
    problems = [*_lacking(command, run, found), *found.obstacles]
    if found.complete and found.why:
        problems.append(found.why)
    notes = [*command.notes, *found.notes, *_unevaluated(command.argv)]
    if not found.complete:
        notes.append(f"not checked by the parser of {command.trainer.name}: {found.why}")
    return msgspec.structs.replace(command, problems=tuple(problems), notes=tuple(notes))


def plan_of(command: Command) -> list[str]:
    """The command, to be read or pasted into a shell."""
    first = " ".join(f"{name}={shlex.quote(value)}" for name, value in command.environment.items())
    lines = [f"{first} \\"] if first else []
    lines.append(f"  {shlex.join(command.words[:2])} \\")
    option: list[str] = []
    for word in [*command.argv, "--"]:
        if word.startswith("--") and option:
            lines.append(f"    {shlex.join(option)} \\")
            option = []
        option.append(word)
    lines[-1] = lines[-1].removesuffix(" \\")
    problems = [f"# it would not start on this machine: {problem}" for problem in command.problems]
    return [*lines, *problems, *(f"# {note}" for note in command.notes)]


def run_to_end(command: Command, run: Run) -> None:
    """Train to the end. The trainer's output goes to trainer.log in the run's folder, its numbers to metrics.jsonl.

    Raises:
        ConfigError: the run cannot start; one line says why.
        OrlError: the trainer ended with an error; names the last one in its log.
    """
    if command.problems:
        raise ConfigError(command.problems[0])
    for note in command.notes:
        logger.warning("%s", note)
    log = run.folder / "trainer.log"
    _handed_over(command.trainer.name, run).write_bytes(_custom_config(run))
    environment, needs = _environment(command, run), _needs(command, run)
    ending: dict[str, Any] = {}
    summary = SummaryFile(run.folder, lambda: _summary_of(run, command))
    try:
        gpus, ray_log = command.layout.per_node, run.folder / "ray.log"
        with (
            interrupt.listening(),
            interrupt.notified(summary.interrupted),
            ray_cluster(command.python, environment, gpus=gpus, log=ray_log, needs=needs) as ray,
        ):
            code = process.run(command.words, ray, log=log, hidden=hidden_of(needs))
        if code:
            memory = f"; {command.trainer.memory}" if process.ran_out_of_memory(log) else ""
            last = process.last_error(log)
            raise OrlError(f"{command.trainer.name} ended with exit code {code}: {last} (see {log}){memory}")
    except KeyboardInterrupt:
        ending = {"interrupted": True}
        raise
    except OrlError as error:
        ending = {"error": shown(str(error))}
        raise
    finally:
        summary.end(ending)


def model_script(trainer: TrainerConfig, folder: Path, suffix: str) -> Path:
    """The file with the model's shape that `--model-args` names: a path, or a name in the trainer's own `folder`.

    Where none is named, it is the one that is named like the model, whatever the case.

    Raises:
        ConfigError: none is named, or there is no such file.
    """
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


def _lacking(command: Command, run: Run, found: Findings) -> list[str]:
    """What a cluster of the run's own lacks here; nothing where one runs already, which is asked as the run starts."""
    if os.environ.get(ADDRESS):
        return []
    layout, needs, environment = command.layout, _needs(command, run), _environment(command, run)
    if layout.nodes > 1:
        return [several_nodes(layout.nodes, layout.per_node, needs)]
    there, asked = min(found.gpus, layout.per_node), max(layout.total, layout.per_node)
    lacking = [f"it has {there} GPUs and the run asks for {asked}: --num-gpus"] if there < asked else []
    if missing := needs.missing({name for name, value in environment.items() if value}):
        lacking.append(f"it has no {', '.join(missing)} in its environment: set what is missing")
    return [*lacking, *unclosable(found.versions.get("ray"))]


def _environment(command: Command, run: Run) -> dict[str, str]:
    """What the trainer, and the workers of a cluster of its own, are started with."""
    return environment_for(command.python, {**given_secrets(run.config), **command.environment})


def _unevaluated(argv: Sequence[str]) -> list[str]:
    """Trainers evaluate every so many steps, and not once more at the end."""
    steps, interval = (number(value_of(argv, name), name) for name in ("--num-rollout", "--eval-interval"))
    if not steps or not interval or interval < 1 or steps % interval == 0:
        return []
    return [f"the last step is not evaluated: --num-rollout {steps} is no multiple of --eval-interval {interval}"]


def _tracked(trainer: TrainerConfig) -> bool:
    """Whether the run goes to Weights & Biases: as `wandb_mode` says, else where there is a key."""
    if trainer.wandb_mode is not None:
        return trainer.wandb_mode != "disabled"
    return bool(os.environ.get(TRACKER))


def _needs(command: Command, run: Run) -> Needs:
    """What the workers need of their environment. Who is logged in at Weights & Biases needs no key there."""
    settings = run.config.trainer
    online = _tracked(settings) and settings.wandb_mode != "offline"
    tracked = online and bool(os.environ.get(TRACKER))
    return needs_of(run.config, f"orl_{command.trainer.name}", tracked=tracked, settings=command.environment)


def _handed_over(trainer: str, run: Run) -> Path:
    """The file of `--custom-config-path`."""
    return run.folder / f"{trainer}.json"


def _custom_config(run: Run) -> bytes:
    """What stands in it: the user's own keys, of a file named in the same way, and ours."""
    own = given(run.config.trainer, run.extra, CUSTOM_CONFIG)
    if own == "":
        raise ConfigError(f"{CUSTOM_CONFIG}: expected a file after it")
    tree = read(Path(own)) if own else {}
    merged = {**tree, "orl_config": run.config.public(), "orl_folder": str(run.folder.absolute())}
    return msgspec.json.format(msgspec.json.encode(merged), indent=2)


def _summary_of(run: Run, command: Command) -> Summary:
    made = Summary.of(run.config, metrics_log.read(run.folder / "metrics.jsonl"))
    return msgspec.structs.replace(
        made,
        # The log hook of a trainer times the rollouts of a step, not the training after them.
        seconds_per_step=msgspec.UNSET,
        rollout_seconds_per_step=made.seconds_per_step,
        seconds_total=round(time.monotonic() - run.started, 1),
        command=command.words,
        **run.facts,
    )
