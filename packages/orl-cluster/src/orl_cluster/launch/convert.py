"""`orl convert` on a cluster: choose the trainer's own tool, run it in the trainer's Python, write the note.

Nothing of a trainer is imported. The names of scripts and options are those that the trainers have in common. The
tool's own parser judges the arguments, at once when it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from orl_core import ConfigError, OrlError, TrainerConfig, boundary
from orl_core.names import download_of
from orl_rollout.logs import say
from orl_rollout.run_folder.checkpoint import Checkpoint, Format, checkpoint_in, weights_in, write_note
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.run_folder.contract import Conversion, Plan

from orl_cluster.launch.command.trainer_defaults import ONE_QUEUE, check_words
from orl_cluster.launch.machine.installation import Installation, find_installation
from orl_cluster.launch.machine.ray_cluster import environment_for
from orl_cluster.launch.options import Options, cluster_of, merge, names_in, shell_text
from orl_cluster.launch.run import process

ShapeOf = Callable[[Installation, TrainerConfig], list[str]]
OWNED = {
    "--hf-checkpoint": "the folder to convert",
    "--save": "--output",
    "--input-dir": "the folder to convert",
    "--output-dir": "--output",
    "--origin-hf-dir": "--model",
    "--force": "orl: the output is a new folder",
}


class Tool(Struct, frozen=True, kw_only=True):
    """A tool: `program` and arguments, the format that it `makes`, the GPUs that it needs."""

    installation: Installation
    program: tuple[str, ...]
    argv: tuple[str, ...]
    makes: Format
    gpus: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the tool needs."""
        return {**self.installation.environment, **(ONE_QUEUE if self.makes == "megatron" else {})}

    @property
    def problem(self) -> str:
        """Return the reason why the tool cannot run on this machine; "" if it can."""
        gpus = self.installation.findings.gpus
        few = f"this machine has {gpus} GPUs but the conversion needs {self.gpus}" if gpus < self.gpus else ""
        return self.installation.missing or few


def plan_of(trainer: str, conversion: Conversion, shape_of: ShapeOf) -> Plan:
    """Return the command that `convert` would run, for a shell. `shape_of` returns the options of a model's shape."""
    tool = _tool(trainer, conversion, shape_of)
    shape = ", and the shape of the model, left out here" if tool.makes == "megatron" else ""
    notes = (f"not checked by {trainer}: options{shape}",) if tool.installation.missing else ()
    command = shell_text(tool.environment, tool.program, tool.argv)
    return Plan(command=command, problems=tuple(filter(None, [tool.problem])), notes=notes)


def convert(trainer: str, conversion: Conversion, shape_of: ShapeOf) -> None:
    """Run the tool. Its output goes to a log next to the new folder, which is removed if the tool fails."""
    tool = _tool(trainer, conversion, shape_of)
    if tool.problem:
        raise ConfigError(tool.problem)
    output = conversion.output.absolute()
    with boundary(OrlError, f"converting to {output}"), ExitStack() as undo:
        output.parent.mkdir(parents=True, exist_ok=True)
        undo.callback(shutil.rmtree, output, ignore_errors=True)
        _run(tool, output)
        write_note(output, _noted(conversion, trainer, output))
        undo.pop_all()
    if tool.makes == "megatron":
        say(f"to train from it: --megatron-ckpt {output}")


def _tool(trainer: str, conversion: Conversion, shape_of: ShapeOf) -> Tool:
    """Return the tool of the conversion. That of Megatron cuts the rows with which it pads the vocabulary."""
    if conversion.output.exists():
        raise ConfigError(f"{conversion.output} exists already. Remove it, or choose another --output")
    check_words(conversion.extra)
    for name in names_in(conversion.extra):
        if name in OWNED:
            raise ConfigError(f"{name} is set by {OWNED[name]}")
    installation = find_installation(trainer, conversion.trainer, conversion.python)
    output, from_format = conversion.output.absolute(), conversion.checkpoint.format
    if from_format == "hf":
        if conversion.trainer.model:
            raise ConfigError(f"--model {conversion.trainer.model}: {conversion.source} is the model. Leave it out")
        shaped = structs.replace(conversion.trainer, model=str(conversion.source))  # its script is named like the model
        shape = shape_of(installation, shaped)
        ours: Options = {"--hf-checkpoint": conversion.source.absolute(), "--save": output}
        gpus, script, makes = cluster_of(conversion.trainer).num_gpus or 1, "convert_hf_to_torch_dist.py", "megatron"
    else:
        shape, model = list[str](), _origin(conversion)
        ours = {
            "--input-dir": weights_in(conversion.source).absolute(),
            "--output-dir": output,
            "--origin-hf-dir": model.absolute(),
            "--vocab-size": _vocabulary(model) if from_format == "megatron" else None,
        }
        tool = "torch_dist" if from_format == "megatron" else "fsdp"
        gpus, script, makes = 0, f"convert_{tool}_to_hf.py", "hf"
    each = ["-m", "torch.distributed.run", "--nproc-per-node", str(gpus)] if gpus > 1 else []
    return Tool(
        installation=installation,
        program=(installation.python, *each, str(Path(installation.findings.root, "tools", script))),
        argv=(*shape, *merge(ours, {}, conversion.extra)),
        makes=makes,
        gpus=gpus,
    )


def _run(tool: Tool, output: Path) -> None:
    log = output.with_name(f"{output.name}.log")
    environment = environment_for(tool.installation.python, tool.environment)
    code = process.run([*tool.program, *tool.argv], environment, log=log)
    checkpoint = checkpoint_in(output)
    if code == 0 and checkpoint is not None and checkpoint.format == tool.makes and weights_in(output).is_dir():
        return
    failure = process.failure_of(log)
    memory = "; --num-gpus spreads the model" if failure.lacks_memory and tool.gpus else ""
    ended = f"ended with exit code {code}" if code else "ended without a checkpoint"
    raise OrlError(f"{Path(tool.program[-1]).name} {ended}: {failure.error} (see {log}){memory}")


def _noted(conversion: Conversion, trainer: str, output: Path) -> Checkpoint:
    """Return the note of the new checkpoint: the weights and their step are those of the old one."""
    source, before = str(conversion.source.absolute()), conversion.checkpoint
    if before.format == "hf":
        return structs.replace(before, format="megatron", trainer=trainer, model=source, tokenizer=source)
    model = str(Path(conversion.trainer.model or before.model).expanduser().absolute())
    return structs.replace(before, format="hf", trainer=trainer, model=model, tokenizer=str(output))


def _origin(conversion: Conversion) -> Path:
    """Return the folder of the Hugging Face checkpoint that training began with, which has config and tokenizer."""
    options = cluster_of(conversion.trainer)
    for option, value in (("--num-gpus", options.num_gpus), ("--model-args", options.model_args)):
        if value:
            raise ConfigError(f"{option} {value}: only a conversion to Megatron uses it. Leave it out")
    named = conversion.trainer.model or conversion.checkpoint.model
    if not named:
        raise ConfigError(
            f"{conversion.source}: no note tells its model. Name the Hugging Face checkpoint that training began with: "
            "--model FOLDER"
        )
    model = Path(named).expanduser()
    checkpoint = checkpoint_in(model) if model.is_dir() else None
    if checkpoint is None or checkpoint.format != "hf":
        get = download_of(named, ", or get it: ")
        raise ConfigError(f"--model {named}: no folder with a Hugging Face checkpoint. Name one{get}")
    return model


def _vocabulary(model: Path) -> int | None:
    """Return the rows of the model's embedding, as its config.json tells; None if it does not."""
    described: dict[str, Any] = read_object(model / "config.json")
    text: dict[str, Any] = described.get("text_config") or {}
    size = described.get("vocab_size") or text.get("vocab_size")
    return size if isinstance(size, int) else None
