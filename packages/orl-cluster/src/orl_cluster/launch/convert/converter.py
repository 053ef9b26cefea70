"""`orl convert` on a cluster: choose the trainer's own tool, run it in the trainer's Python, write the note.

Nothing of a trainer is imported or named. The tools that trainers have in common are in `tools`. The tool's own parser
judges the arguments, at once when it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from msgspec import structs
from orl_core.config import TrainerConfig
from orl_core.credentials import refuse_on_command_line
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.logs import say
from orl_rollout.run_folder.checkpoint import Checkpoint, checkpoint_in, weights_in, write_note
from orl_rollout.run_folder.contract import Conversion, Plan

from orl_cluster.launch.argv import shell_text
from orl_cluster.launch.command.trainer_defaults import check_words
from orl_cluster.launch.convert import tools
from orl_cluster.launch.convert.tools import Tool
from orl_cluster.launch.machine.installation import Installation, find_installation
from orl_cluster.launch.machine.ray_cluster import environment_for
from orl_cluster.launch.run import process

ShapeOf = Callable[[Installation, TrainerConfig], list[str]]


def plan_of(trainer: str, conversion: Conversion, shape_of: ShapeOf) -> Plan:
    """Return the command that `convert` would run, for a shell. `shape_of` returns the options of a model's shape."""
    installation, tool = _chosen(trainer, conversion, shape_of)
    variables = {**installation.environment, **tool.environment}
    command = shell_text(variables, _program(installation, tool), tool.argv)
    shape = ", and the shape of the model, left out here" if tool.makes == "megatron" else ""
    notes = (f"not checked by {trainer}: options{shape}",) if installation.missing else ()
    return Plan(command=command, problems=tuple(_problems(installation, tool)), notes=notes)


def convert(trainer: str, conversion: Conversion, shape_of: ShapeOf) -> None:
    """Run the tool. Its output goes to a log next to the new folder, which is removed if the tool fails."""
    installation, tool = _chosen(trainer, conversion, shape_of)
    for problem in _problems(installation, tool):
        raise ConfigError(problem)
    output = conversion.output.absolute()
    with boundary(OrlError, f"converting to {output}"), ExitStack() as undo:
        output.parent.mkdir(parents=True, exist_ok=True)
        undo.callback(shutil.rmtree, output, ignore_errors=True)
        _run(installation, tool, output)
        write_note(output, _noted(conversion, trainer, output))
        undo.pop_all()
    if tool.makes == "megatron":
        say(f"to train from it: --megatron-ckpt {output}")


def _chosen(trainer: str, conversion: Conversion, shape_of: ShapeOf) -> tuple[Installation, Tool]:
    if conversion.output.exists():
        raise ConfigError(f"{conversion.output} exists already. Remove it, or choose another --output")
    check_words(conversion.extra)
    refuse_on_command_line(conversion.extra)
    installation = find_installation(trainer, conversion.trainer, conversion.python)
    if conversion.checkpoint.format != "hf":
        return installation, tools.to_hugging_face(conversion)
    shaped = structs.replace(conversion.trainer, model=str(conversion.source))  # its script is named like the model
    return installation, tools.to_megatron(conversion, shape_of(installation, shaped))


def _program(installation: Installation, tool: Tool) -> list[str]:
    """Return the words before the arguments. A tool on several GPUs has a process for each."""
    each = ["-m", "torch.distributed.run", "--nproc-per-node", str(tool.gpus)] if tool.gpus > 1 else []
    return [installation.python, *each, str(Path(installation.findings.root) / tool.script)]


def _problems(installation: Installation, tool: Tool) -> list[str]:
    """Return what keeps the tool from running on this machine."""
    root, gpus = installation.findings.root, installation.findings.gpus
    if installation.missing:
        return [installation.missing]
    if not (Path(root) / tool.script).is_file():
        raise ConfigError(
            f"{root}: this {installation.trainer} has no {tool.script}. Update it, or convert with another trainer"
        )
    advice = ". Lower --num-gpus" if gpus else ""
    return [f"this machine has {gpus} GPUs but the conversion needs {tool.gpus}{advice}"] if gpus < tool.gpus else []


def _run(installation: Installation, tool: Tool, output: Path) -> None:
    log = output.with_name(f"{output.name}.log")
    environment = environment_for(installation.python, {**installation.environment, **tool.environment})
    code = process.run([*_program(installation, tool), *tool.argv], environment, log=log)
    checkpoint = checkpoint_in(output)
    if code == 0 and checkpoint is not None and checkpoint.format == tool.makes and weights_in(output).is_dir():
        return
    failure = process.failure_of(log)
    memory = "; --num-gpus spreads the model" if failure.lacks_memory and tool.gpus else ""
    ended = f"ended with exit code {code}" if code else "ended without a checkpoint"
    raise OrlError(f"{Path(tool.script).name} {ended}: {failure.error} (see {log}){memory}")


def _noted(conversion: Conversion, trainer: str, output: Path) -> Checkpoint:
    """Return the note of the new checkpoint: the weights and their step are those of the old one."""
    source, before = str(conversion.source.absolute()), conversion.checkpoint
    if before.format == "hf":
        return structs.replace(before, format="megatron", trainer=trainer, model=source, tokenizer=source)
    model = str(Path(conversion.trainer.model or before.model).expanduser().absolute())
    return structs.replace(before, format="hf", trainer=trainer, model=model, tokenizer=str(output))
