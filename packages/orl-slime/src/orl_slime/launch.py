"""`orl train slime`: everything checked, slime's train.py run in slime's own Python, the run's figures written.

It imports nothing of slime: the Python that has it is asked (`probe`) and run. `plan` says what `train` does. Secrets
reach slime's workers by inherited environment alone (law L6).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.config import TrainerConfig
from orl_core.configfile import read
from orl_core.errors import ConfigError, OrlError
from orl_rollout import history
from orl_rollout.cluster import process
from orl_rollout.cluster.argv import nearest, value_of, without
from orl_rollout.cluster.python import find_python
from orl_rollout.cluster.ray import environment_for, ray_cluster
from orl_rollout.run import Run

from orl_slime import args, probe

CUSTOM_CONFIG = "slime.json"  # in the run's folder
MEMORY_LEVERS = (
    "what lowers memory: --max-tokens-per-gpu, --max-context-len, fewer `max_turns`; after `--`: "
    "--context-parallel-size, --sglang-mem-fraction-static 0.5, --optimizer-cpu-offload"
)


class Command(Struct, frozen=True, kw_only=True):
    """What runs: `script` in the folder `root` with `argv`, and `environment` beside what is inherited.

    `problems` are what keeps it from running on this machine, `notes` what could not be checked here.
    """

    python: str
    root: Path
    script: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    layout: args.Layout
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        return [self.python, str(self.root / self.script), *self.argv]


def plan(run: Run) -> list[str]:
    """The command that `train` would run, to be read or pasted into a shell.

    Raises:
        ConfigError: it cannot be run like this; one line says why.
    """
    command = command_of(run)
    first = " ".join(f"{name}={shlex.quote(value)}" for name, value in command.environment.items())
    lines = [f"{first} \\", f"  {shlex.join(command.words[:2])} \\"]
    option: list[str] = []
    for word in [*command.argv, "--"]:
        if word.startswith("--") and option:
            lines.append(f"    {shlex.join(option)} \\")
            option = []
        option.append(word)
    lines[-1] = lines[-1].removesuffix(" \\")
    problems = [f"# it would not start on this machine: {problem}" for problem in command.problems]
    return [*lines, *problems, *(f"# {note}" for note in command.notes)]


def train(run: Run) -> None:
    """Train to the end. slime's output goes to trainer.log in the run's folder, its numbers to metrics.jsonl.

    Raises:
        ConfigError: the run cannot start; one line says why.
        OrlError: slime ended with an error; names the last one in its log.
    """
    command = command_of(run)
    if command.problems:
        raise ConfigError(command.problems[0])
    log = run.folder / "trainer.log"
    (run.folder / CUSTOM_CONFIG).write_bytes(_custom_config(run))
    environment = environment_for(command.python, command.environment)
    ending: dict[str, Any] = {}
    try:
        with ray_cluster(command.python, environment, gpus=command.layout.per_node, log=run.folder / "ray.log") as ray:
            code = process.run(command.words, ray, log=log)
        if code:
            memory = f"; {MEMORY_LEVERS}" if process.ran_out_of_memory(log) else ""
            raise OrlError(f"slime ended with exit code {code}: {process.last_error(log)} (see {log}){memory}")
    except KeyboardInterrupt:
        ending = {"interrupted": True}
        raise
    except OrlError as error:
        ending = {"error": str(error)}
        raise
    finally:
        _write_summary(run, command, ending)


def command_of(run: Run) -> Command:
    """slime's command line for `run`, with what its own environment and parser say of it.

    Raises:
        ConfigError: no slime, an option that nothing knows, or sizes that do not fit together.
    """
    config, trainer = run.config, run.config.trainer
    python = find_python("slime", run.python)
    about = probe.ask(python, [])
    if not about.root:
        raise ConfigError(f"{python}: slime is installed without its train.py: install it from a checkout (-e)")
    layout = args.layout_of(trainer, about.gpus)
    save = Path(trainer.save or run.folder / "checkpoint").absolute()
    files = args.Files(
        task_data=run.task_data.absolute(),
        eval_data=run.eval_data.absolute() if run.eval_data else None,
        custom_config=(run.folder / CUSTOM_CONFIG).absolute(),
        save=save,
        resume=(save / "latest_checkpointed_iteration.txt").is_file(),
    )
    shape = model_args(trainer, Path(about.root))
    argv = args.arguments(config, files, layout, model_args=shape, extra=run.extra, tracked=_tracked(trainer))
    command = Command(
        python=python,
        root=Path(about.root),
        script="train_async.py" if trainer.asynchronous else "train.py",
        argv=tuple(argv),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        layout=layout,
    )
    return _checked(command, _custom_config(run))


def _checked(command: Command, custom_config: bytes) -> Command:
    """`command` with what slime's own parser, and this machine, say of it.

    Raises:
        ConfigError: an option that no parser knows.
    """
    with TemporaryDirectory() as folder:  # the run's own file need not be there yet
        written = Path(folder) / CUSTOM_CONFIG
        written.write_bytes(custom_config)
        found = probe.ask(
            command.python, [*without(command.argv, "--custom-config-path"), "--custom-config-path", str(written)]
        )
    for name, near in found.unknown.items():
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"slime, Megatron and SGLang have no option {name}, which slime would ignore{hint}")
    load = value_of(command.argv, "--load") or ""
    problems: list[str] = []
    if found.gpus < command.layout.per_node:
        problems.append(f"it has {found.gpus} GPUs and the run asks for {command.layout.per_node}: --num-gpus")
    if not Path(load).exists():
        problems.append(f"--load {load}: slime needs a folder: download the checkpoint, and name it with --model")
    elif not found.reads_hf:
        problems.append(
            f"--load {load}: slime does not read this checkpoint as it is: convert it with {command.root}/tools/"
            "convert_hf_to_torch_dist.py and name the result with --megatron-ckpt"
        )
    if found.complete and found.why:
        problems.append(found.why)
    notes = () if found.complete else (f"not checked by slime's own parser: {found.why}",)
    return msgspec.structs.replace(command, problems=tuple(problems), notes=notes)


def model_args(trainer: TrainerConfig, root: Path) -> list[str]:
    """The model's shape: the array MODEL_ARGS of the script named by `--model-args`, a path or a name of slime's own.

    Raises:
        ConfigError: none is named, there is no such script, or it sets no MODEL_ARGS.
    """
    known = sorted(script.stem for script in (root / "scripts" / "models").glob("*.sh"))
    named = trainer.model_args or _like(trainer.model or args.MODEL, known)
    if not named:
        raise ConfigError(
            f"--model-args: name the script with the shape of {trainer.model}: a path, or one of {', '.join(known)}"
        )
    name = Path(named).name.removesuffix(".sh")
    script = Path(named) if Path(named).is_file() else root / "scripts" / "models" / f"{name}.sh"
    if not script.is_file():
        near = nearest(name, known)
        raise ConfigError(f"--model-args {named}: no such script{f'; did you mean {near}?' if near else ''}")
    asked = subprocess.run(
        ["bash", "-c", 'source "$1" >/dev/null && printf "%s\\0" "${MODEL_ARGS[@]}"', "bash", str(script)],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    words = [word for word in asked.stdout.split("\0") if word]
    if asked.returncode or not words:
        raise ConfigError(f"--model-args {script}: it sets no MODEL_ARGS: {asked.stderr.strip()[-200:]}")
    return words


def _like(model: str, known: list[str]) -> str:
    """The script that is named like the model, whatever the case."""
    name = Path(model).name.lower()
    return next((script for script in known if script.lower() == name), "")


def _tracked(trainer: TrainerConfig) -> bool:
    """Whether the run goes to Weights & Biases: as `wandb_mode` says, else where there is a key."""
    if trainer.wandb_mode is not None:
        return trainer.wandb_mode != "disabled"
    return bool(os.environ.get("WANDB_API_KEY"))


def _custom_config(run: Run) -> bytes:
    """The file of `--custom-config-path`: the user's own keys, and ours."""
    own = args.custom_config_of(run.config, run.extra)
    tree = read(Path(own)) if own else {}
    merged = {**tree, "orl_config": run.config.public(), "orl_folder": str(run.folder.absolute())}
    return msgspec.json.format(msgspec.json.encode(merged), indent=2)


def _write_summary(run: Run, command: Command, ending: dict[str, Any]) -> None:
    rows = history.read(run.folder / "metrics.jsonl")
    summary = {
        "env": ", ".join(run.config.environments),
        "model": run.config.trainer.model,
        "steps": max((row["step"] for row in rows if row["kind"] == "train"), default=0),
        **history.figures(rows),
        "seconds_total": round(time.monotonic() - run.started, 1),
        "seed": run.config.trainer.seed,
        "command": command.words,
        **ending,
        **run.facts,
    }
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    (run.folder / "summary.json").write_bytes(text + b"\n")
