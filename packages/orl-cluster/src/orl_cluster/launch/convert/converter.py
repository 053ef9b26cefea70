"""`orl convert` on a cluster: check the command line of the trainer's own tool, run it in its Python, write the note.

Nothing of a trainer is imported or named. An adapter chooses the Tool; those that trainers have in common are in
`tools`. The tool's own parser judges the arguments (`tool_probe`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct, structs
from orl_core.credentials import refuse_on_command_line
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.logs import logger_of, say
from orl_rollout.run_folder.checkpoint import Checkpoint, checkpoint_in, weights_in, write_note
from orl_rollout.run_folder.contract import Conversion, Plan

from orl_cluster.launch.argv import shell_text
from orl_cluster.launch.command.trainer_defaults import check_words
from orl_cluster.launch.convert.tools import Tool
from orl_cluster.launch.machine import probe
from orl_cluster.launch.machine.installation import Installation, find_installation
from orl_cluster.launch.machine.probe import Findings
from orl_cluster.launch.machine.ray_cluster import environment_for
from orl_cluster.launch.run import process

logger = logger_of("orl")


class Command(Struct, frozen=True, kw_only=True):
    """A tool of an installed trainer. `problems` keep it from running on this machine, `notes` are for its user."""

    tool: Tool
    installation: Installation
    conversion: Conversion
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The path of the tool."""
        return str(Path(self.installation.found.root) / self.tool.script)

    @property
    def program(self) -> list[str]:
        """The words before the arguments. A tool on several GPUs has a process for each."""
        each = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.tool.gpus)] if self.tool.gpus > 1 else []
        return [self.installation.python, *each, self.script]

    @property
    def environment(self) -> dict[str, str]:
        """The variables beside those that the tool inherits."""
        return {**self.installation.environment, **self.tool.environment}


class ClusterConverter(Struct, frozen=True, kw_only=True):
    """The conversions of the trainer `name`; `tool_of` chooses its tool."""

    name: str
    tool_of: Callable[[Installation, Conversion], Tool]

    def plan(self, conversion: Conversion) -> Plan:
        """Return the command that `convert` would run, for a shell.

        Raises:
            ConfigError: the trainer has no such conversion, or an option is wrong.
        """
        command = self._checked(conversion)
        shown = shell_text(command.environment, command.program, command.tool.argv)
        return Plan(command=shown, problems=command.problems, notes=command.notes)

    def convert(self, conversion: Conversion) -> None:
        """Run the tool. Its output goes to a log beside the new folder, which is removed if the tool fails.

        Raises:
            ConfigError: the conversion cannot start; one line says why.
            OrlError: the tool ended with an error; names the last one in its log.
        """
        command = self._checked(conversion)
        if command.problems:
            raise ConfigError(command.problems[0])
        for note in command.notes:
            logger.warning("%s", note)
        output = conversion.output.absolute()
        with boundary(OrlError, f"converting to {output}"), ExitStack() as undo:
            output.parent.mkdir(parents=True, exist_ok=True)
            undo.callback(shutil.rmtree, output, ignore_errors=True)
            _run(command, output)
            write_note(output, _noted(conversion, self.name, output))
            undo.pop_all()
        if command.tool.makes == "megatron":
            say(f"to train from it: --megatron-ckpt {output}")

    def _checked(self, conversion: Conversion) -> Command:
        if conversion.output.exists():
            raise ConfigError(f"{conversion.output} exists already. Remove it, or choose another --output")
        check_words(conversion.extra)
        refuse_on_command_line(conversion.extra)
        installation = find_installation(self.name, conversion.trainer, conversion.python)
        tool = self.tool_of(installation, conversion)
        return _judged(Command(tool=tool, installation=installation, conversion=conversion))


def _judged(command: Command) -> Command:
    """Return `command` with the findings of the tool's own parser and of this machine.

    Raises:
        ConfigError: there is no such tool, or an option that its parser does not know.
    """
    installation, tool = command.installation, command.tool
    if installation.missing:
        shape = ", and the shape of the model, left out here" if tool.makes == "megatron" else ""
        unseen = f"not checked by {installation.trainer}: options{shape}"
        return structs.replace(command, problems=(installation.missing,), notes=(unseen,))
    if not Path(command.script).is_file():
        raise ConfigError(f"{installation.found.root}: this {installation.trainer} has no {tool.script}. Update it")
    found = _asked(command)
    for name, hint in found.unknown.items():
        raise ConfigError(f"{Path(tool.script).name} has no option {name}{hint}")
    gpus = installation.found.gpus
    advice = ". Lower --num-gpus" if gpus else ""
    lacking = [f"this machine has {gpus} GPUs but the conversion needs {tool.gpus}{advice}"] if gpus < tool.gpus else []
    if found.complete:
        return structs.replace(command, problems=(*lacking, *([found.why] if found.why else [])))
    unseen = f"not checked by its own parser: {found.why}"
    return structs.replace(command, problems=tuple(lacking), notes=(unseen,))


def _asked(command: Command) -> Findings:
    tool, python = command.tool, command.installation.python
    arguments = [command.script, tool.parser, "--", *tool.argv]
    environment = environment_for(python, command.environment)
    module = "orl_cluster.launch.convert.tool_probe"
    return msgspec.json.decode(
        probe.answer_of(python, module, arguments, environment, seconds=probe.ASK_SECONDS), type=Findings
    )


def _run(command: Command, output: Path) -> None:
    log = output.with_name(f"{output.name}.log")
    environment = environment_for(command.installation.python, command.environment)
    code = process.run([*command.program, *command.tool.argv], environment, log=log)
    made = checkpoint_in(output)
    if code == 0 and made is not None and made.format == command.tool.makes and weights_in(output).is_dir():
        return
    failure = process.failure_of(log)
    memory = "; --num-gpus spreads the model" if failure.lacks_memory and command.tool.gpus else ""
    name = Path(command.tool.script).name
    ended = f"ended with exit code {code}" if code else "ended without a checkpoint"
    raise OrlError(f"{name} {ended}: {failure.error} (see {log}){memory}")


def _noted(conversion: Conversion, trainer: str, output: Path) -> Checkpoint:
    """Return the note of the new checkpoint: the weights and their step are those of the old one."""
    source, before = str(conversion.source.absolute()), conversion.checkpoint
    if before.format == "hf":
        return structs.replace(before, format="megatron", trainer=trainer, model=source, tokenizer=source)
    model = str(Path(conversion.trainer.model or before.model).expanduser().absolute())
    return structs.replace(before, format="hf", trainer=trainer, model=model, tokenizer=str(output))
