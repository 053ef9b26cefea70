"""`orl train` and `orl convert` on a cluster: check rows, options and GPUs, and run the trainer's own Python.

Nothing of a trainer is imported or named: its Python is asked (`probe`) and run. An adapter makes the Command.
Secrets reach the trainer's workers by inherited environment alone (law L6).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, structs
from orl_core import ConfigError, RunConfig, TrainerConfig
from orl_rollout.edge.files import read_lines
from orl_rollout.edge.secrets import unset_in
from orl_rollout.logs import logger_of
from orl_rollout.run_folder.checkpoint import is_absent
from orl_rollout.run_folder.contract import Conversion, Plan, Run, refuse_workers
from orl_rollout.run_folder.tracking import tracking_of
from orl_rollout.tasks.file import metadata_in, task_in

from orl_cluster.context import with_context
from orl_cluster.launch import convert
from orl_cluster.launch.command.command import (
    Command,
    LaunchRequest,
    custom_config,
    environment_of,
    layout_of,
    required_env,
    splits_of,
)
from orl_cluster.launch.command.model_shape import estimate, is_mixture
from orl_cluster.launch.command.trainer_defaults import MODEL, SUCCESSORS
from orl_cluster.launch.machine import probe
from orl_cluster.launch.machine.installation import Installation, find_installation, without_busy_gpus
from orl_cluster.launch.machine.probe import Findings
from orl_cluster.launch.machine.ray_cluster import ray_address, several_nodes, unclosable
from orl_cluster.launch.options import (
    CHECK,
    CLUSTER,
    CONTEXT_PARALLEL,
    CUSTOM_CONFIG,
    CUSTOM_REWARD,
    DEFAULTS,
    GENERATE,
    PARTIAL,
    REPLAY,
    STALL_MARGIN,
    CheckoutOptions,
    ClusterOptions,
    cluster_of,
    merge,
    number,
    shell_text,
    value_of,
    without,
)
from orl_cluster.launch.run.attempts import run_to_end

CHAT, REWARD_KEY = "--apply-chat-template", "--reward-key"
READ = ("--input-key", "--label-key", "--metadata-key", CHAT, REWARD_KEY)
_ROW = msgspec.json.Decoder(dict[str, Any])
TEACHER = "--opd-type"
SERVED_TEACHER = (
    f"a served teacher answers through {CUSTOM_REWARD}, which scores plain rows alone. For tasks, use megatron and "
    "--opd-teacher-load FOLDER"
)
logger = logger_of("orl")

TENSORBOARD = "TENSORBOARD_DIR"  # the variable by which the trainers find the folder
LESS_MEMORY = "these lower memory use: --max-tokens-per-gpu, --max-context-len, fewer `max_turns`; after `--`: "
MEGATRON_MEMORY = f"{LESS_MEMORY}--context-parallel-size, --sglang-mem-fraction-static 0.5, --optimizer-cpu-offload"


class ClusterTrainer(Struct, frozen=True, kw_only=True):
    """The entry point of the adapter of the trainer `name`, see `orl_rollout.run_folder.contract.Trainer`.

    `command_of` makes the trainer's command line, `shape_of` the options of a model's shape.
    """

    name: str
    command_of: Callable[[Installation, Run], Command]
    shape_of: Callable[[Installation, TrainerConfig], list[str]]
    default_model: ClassVar[str] = MODEL
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS

    @property
    def sections(self) -> dict[str, type[Struct]]:
        """The sections of `trainer`, by name."""
        return {CLUSTER: ClusterOptions, self.name: CheckoutOptions}

    @property
    def conversion_options(self) -> tuple[str, ...]:
        """The options of a conversion."""
        return (f"{CLUSTER}.num_gpus", f"{CLUSTER}.model_args", f"{self.name}.path", f"{CLUSTER}.megatron_path")

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the trainer's Python needs."""
        return ("orl-core", "orl-rollout", "orl-cluster", "orl-gateway", f"orl-{self.name}")

    def resolve(self, config: RunConfig, extra: Sequence[str]) -> RunConfig:
        """Return `config` with the limit of the context. `extra` are the words after `--`.

        Raises:
            ConfigError: a section is wrong, or `stall_timeout` would end a healthy run.
        """
        config.trainer.section(self.name, CheckoutOptions)
        timeout = cluster_of(config.trainer).stall_timeout
        limits = config.rollout
        least = limits.rollout_timeout + (limits.reward_timeout or 0.0) + limits.patience + STALL_MARGIN
        if timeout < least:
            raise ConfigError(
                f"`trainer.cluster.stall_timeout` is {timeout:g}, below `rollout_timeout`, `reward_timeout`, "
                f"`patience` and {STALL_MARGIN:g} together: it would end a healthy run. Set it to {least:g} or more"
            )
        words = merge({}, config.trainer.own_flags, extra)
        return with_context(config, number(words, CONTEXT_PARALLEL))

    def plan(self, run: Run) -> Plan:
        """Return the command that `train` would run, for a shell."""
        command = self._checked(run)
        shown = shell_text(command.environment, command.words[:2], command.argv)
        return Plan(command=shown, problems=command.problems, notes=command.notes, memory=command.estimate)

    def train(self, run: Run) -> None:
        """Train to the end. The output is in trainer.log of the run's folder, the numbers are in metrics.jsonl."""
        command = self._checked(run)
        installation = command.request.installation
        run_to_end(command, lambda run: _with_settings(self.command_of(installation, run)))

    def plan_conversion(self, conversion: Conversion) -> Plan:
        """Return the command that `convert` would run, for a shell."""
        return convert.plan_of(self.name, conversion, self.shape_of)

    def convert(self, conversion: Conversion) -> None:
        """Write the checkpoint in the other format, with the trainer's own tool."""
        convert.convert(self.name, conversion, self.shape_of)

    def _checked(self, run: Run) -> Command:
        installation = find_installation(self.name, run.config.trainer, run.python)
        installation = without_busy_gpus(installation, cluster_of(run.config.trainer))
        return _check(_with_settings(self.command_of(installation, run)))


def _with_settings(command: Command) -> Command:
    """Return `command` with the variables of its user's settings, in addition to the trainer's own."""
    run = command.request.run
    folder = os.environ.get(TENSORBOARD) or str((run.folder / "tensorboard").absolute())
    board = {TENSORBOARD: folder} if run.config.trainer.tensorboard else {}
    return structs.replace(
        command, environment={**command.request.installation.environment, **command.environment, **board}
    )


def request_of(
    installation: Installation, run: Run, shape: Sequence[str], *, trains_in_parallel: bool = True
) -> LaunchRequest:
    """Return the input of the adapter's command line; see `layout_of`. `shape` are the options of the model's shape."""
    trainer = run.config.trainer
    splits = splits_of(run) if trains_in_parallel else 1
    layout = layout_of(
        cluster_of(trainer), installation.findings.gpus, trains_in_parallel=trains_in_parallel, other_splits=splits
    )
    request = LaunchRequest(run=run, installation=installation, layout=layout, tracking=tracking_of(trainer))
    return structs.replace(request, mixture=is_mixture(request, shape))


def _check(command: Command) -> Command:
    """Return `command` with the findings of the trainer's own parser and of this machine."""
    request = command.request
    run, installation, model = request.run, request.installation, request.trainer.model or ""
    # A dry run prepares no file; a prepared one holds tasks alone.
    plain_rows = check_rows(run.task_data, run.config, command.argv) if run.task_data.is_file() else 0
    refuse(request, plain_rows)
    notes = [*filter(None, [*command.notes, installation.note, request.tracking.note])]
    names = ", ".join(request.names) or "options"
    ahead = SUCCESSORS[value_of(command.argv, "--train-backend") or "megatron"]
    findings = _findings(command, ahead)
    lacking = [name for name in (CHECK, REPLAY) if name in findings.unknown and name not in request.names]
    if lacking:  # a version without an option of ours
        for name in lacking:
            command = structs.replace(command, argv=tuple(without(command.argv, name)))
        findings = _findings(command, ahead)
    for name, hint in findings.unknown.items():
        advice = f"; use {ahead[name]}" if name in ahead else hint
        raise ConfigError(f"{command.unknown.format(name)}{advice}")
    if findings.reward and not installation.missing:  # here it may lack what the trainer's Python has
        raise ConfigError(f"{installation.python}: {findings.reward}")
    # The GPUs of a cluster that runs already are other ones.
    gpus = () if ray_address(os.environ) else findings.gpu_memory[: request.layout.per_node]
    memory = estimate(command.argv, request.layout, gpus)
    absent = f"--model {model}: no such folder" if is_absent(model) else ""
    problems = [
        *filter(None, (installation.missing, *command.problems, findings.reward, absent)),
        *_lacking(command, findings),
        *memory.problems,
        *([findings.obstacle] if findings.obstacle else []),
    ]
    notes += [*unset_in(run.config), *unused_reward(run.config), *memory.notes]
    if installation.missing:
        unseen = "GPUs and their memory, packages, and the shape of the model, left out here"
        notes.append(f"not checked by {installation.trainer}: {names}, {unseen}")
    elif not findings.complete:
        notes.append(f"not checked by the parser of {installation.trainer}: {names}: {findings.why}")
    elif findings.why:
        problems.append(findings.why)
    return structs.replace(command, problems=tuple(problems), notes=tuple(notes), estimate=memory.table)


def _findings(command: Command, ahead: Container[str]) -> Findings:
    """Ask the trainer's Python about the command line. If it is missing, options of `ahead` count as unknown."""
    request, installation = command.request, command.request.installation
    if installation.missing:
        unknown = {name: "" for name in request.names if name in ahead}
        reward = probe.function_fault(request.run.config.public())
        return structs.replace(installation.findings, unknown=unknown, reward=reward)
    with TemporaryDirectory() as folder:  # the run's own file need not be there yet
        written = Path(folder) / "custom.json"
        written.write_bytes(custom_config(request))
        argv = [*without(command.argv, CUSTOM_CONFIG), CUSTOM_CONFIG, str(written)]
        return probe.ask(installation.trainer, installation.python, argv, environment_of(command))


def _lacking(command: Command, findings: Findings) -> list[str]:
    """Return the faults of this machine for a cluster of the run's own; a cluster that runs already is asked later."""
    if ray_address(os.environ):
        return []
    layout, needs = command.request.layout, required_env(command)
    if layout.machines > 1 and (layout.nodes > 1 or findings.gpus):  # a machine without GPUs tells nothing of a node's
        return [several_nodes(layout.machines, layout.per_node, needs)]
    there, needed = min(findings.gpus, layout.per_node), max(layout.total, layout.per_node)
    advice = ". Lower --num-gpus" if there else ". Without a GPU, train with local"
    too_few = there < needed and not command.request.installation.missing
    lacking = [f"this machine has {there} GPUs but the run needs {needed}{advice}"] if too_few else []
    if missing := needs.missing({name for name, value in environment_of(command).items() if value}):
        lacking.append(f"not set in the environment: {', '.join(missing)}")
    return [*lacking, *unclosable(findings.ray)]


def refuse(request: LaunchRequest, plain_rows: int | None) -> None:
    """Refuse settings that the run would not obey. `plain_rows` is the number of rows without a task, if it is known.

    The user's own `--custom-rm-path` scores plain rows alone, and a served teacher answers through it.
    """
    config = request.run.config
    refuse_workers(config, f"{request.installation.trainer} plays in processes of its own")
    if request.value(PARTIAL) is not None and (setting := config.several_rows):
        raise ConfigError(f"{setting} makes several samples of a rollout, which {PARTIAL} loses. Remove {setting}")
    if not request.value(CUSTOM_REWARD) and request.value(TEACHER) == "sglang":
        raise ConfigError(f"{TEACHER} sglang: {SERVED_TEACHER}")
    if request.value(CUSTOM_REWARD) and plain_rows == 0:
        raise ConfigError(
            f"{CUSTOM_REWARD} scores plain rows, and `reward: module:function` in the configuration scores tasks: "
            f"{request.run.task_data} has no plain row. Use `reward`"
        )
    if config.agent_config is not None and not config.environments:
        raise ConfigError(f"`agent` plays tasks, and `environments` is empty. Remove it, or give {GENERATE} after `--`")


def unused_reward(config: RunConfig) -> list[str]:
    """Note a reward function that scores nothing, because all rows are plain. Another trainer may use the same file."""
    if config.environments or config.reward is None:
        return []
    return [f"`reward` scores tasks, and all rows are plain: the trainer scores them by --rm-type or {CUSTOM_REWARD}"]


def check_rows(path: Path, config: RunConfig, argv: Sequence[str]) -> int | None:
    """Read the rows of `path`, JSON lines, as the trainer would with the options `argv`; parquet is left to it.

    Return the number of rows that are no tasks; None for parquet.
    """
    if path.suffix == ".parquet":
        return None
    options = {name: value_of(argv, name) for name in READ}
    rows = plain = 0
    for place, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        rows += 1
        try:
            plain += _is_plain(_ROW.decode(line), options, config)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as exc:
            raise ConfigError(f"{path}:{place}: {exc}") from exc
    if not rows:
        raise ConfigError(f"{path}: there is no row in it")
    return plain


def _is_plain(row: Mapping[str, Any], options: Mapping[str, str | None], config: RunConfig) -> bool:
    """Check a row, and tell whether it is no task."""
    for option in ("--input-key", "--label-key"):
        if (name := options[option]) and name not in row:
            raise ConfigError(f"it has no `{name}`")
    metadata = metadata_in(row.get(options["--metadata-key"] or "metadata"))
    if "env_name" in metadata:
        config.environment(task_in(metadata).env_name)
        if key := options[REWARD_KEY]:
            raise ConfigError(f"{REWARD_KEY} {key}: a task's reward is one number and has no key. Remove it")
        return False
    prompt = options["--input-key"] or "input"
    if isinstance(row.get(prompt), list) and options[CHAT] is None:
        raise ConfigError(f"its `{prompt}` is a list of messages: give {CHAT} after `--`")
    return True
