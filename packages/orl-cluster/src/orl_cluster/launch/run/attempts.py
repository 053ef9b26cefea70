"""Run a trainer to its end, and again if GPU memory ran out or an engine died. Write the summary.

Every attempt continues from the run's own newest checkpoint. Journal, metrics and log are those of one run.

Training needs the larger of two: the tokens of a GPU, and the longest rollout. The larger one is lowered first, twice;
then the engines' share. If an engine ran out of memory, its share comes first. An option that the user gave by the
trainer's own name is left as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.logs import logger_of, shown, working
from orl_rollout.run_folder import metrics_log, turn_count
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, note_saved, trained_number
from orl_rollout.run_folder.contract import CHECKPOINT, Run
from orl_rollout.run_folder.record import Recovery, add_recovery
from orl_rollout.run_folder.summary import BROKE_OFF, Summary, SummaryFile

from orl_cluster.launch.command.command import (
    Command,
    LaunchRequest,
    custom_config,
    environment_of,
    required_env,
    write_eval_sets,
)
from orl_cluster.launch.command.trainer_defaults import critic_folder
from orl_cluster.launch.machine.ray_cluster import ray_cluster
from orl_cluster.launch.options import (
    CHECK,
    CONTEXT,
    CONTEXT_PARALLEL,
    ENGINE_SHARE,
    PER_GPU,
    names_in,
    number,
    option_name,
    split_options,
    value_of,
    without,
)
from orl_cluster.launch.run import process
from orl_cluster.launch.run.process import Failure, Watch, followed

logger = logger_of("orl")
UNEQUAL_WEIGHTS = (
    "the first copy of the weights did not leave the engines what they had loaded. If some tensors of the model do "
    f"not train, go without this check: --set trainer.flags.{CHECK.removeprefix('--')}=false"
)
RETRIES = 3
LEAST_TOKENS = 1024
LEAST_SHARE, SHARE_STEP = 0.3, 0.15
# Options that say where a run begins, and how. The run's own checkpoint replaces them.
BEGINNING = ("--load", "--ckpt-step", "--critic-load", "--finetune", "--start-rollout-id")
NO_OPTIMIZER, UNSAVED_OPTIMIZER = "--no-load-optim", "--no-save-optim"
Remake = Callable[[Run], Command]


class Change(Struct, frozen=True, kw_only=True):
    """A new value of one option of the trainer."""

    option: str
    before: str
    after: str


def next_change(
    argv: Sequence[str], own: Collection[str], changes: Sequence[Change], *, in_engine: bool
) -> Change | None:
    """Return the change of `argv` that lowers memory next; None if nothing is left to lower.

    `own` are the options that the user gave by the trainer's own names, `changes` the changes up to now.
    """
    context, tokens, parallel = (number(argv, name) for name in (CONTEXT, PER_GPU, CONTEXT_PARALLEL))
    training = (CONTEXT, PER_GPU) if context > tokens * parallel else (PER_GPU, CONTEXT)
    engines = sum(change.option == ENGINE_SHARE for change in changes)
    rounds = {ENGINE_SHARE: engines, **dict.fromkeys(training, (len(changes) - engines) // 2)}
    for option in sorted((ENGINE_SHARE, *training) if in_engine else (*training, ENGINE_SHARE), key=rounds.__getitem__):
        before = value_of(argv, option)
        after = _lowered(option, before) if before and option not in own else None
        if before and after:
            return Change(option=option, before=before, after=after)
    return None


def _lowered(option: str, value: str) -> str | None:
    """Return the next lower value of an option; None below the least."""
    if option == ENGINE_SHARE:
        share = round(float(value) - SHARE_STEP, 2)
        return str(share) if share >= LEAST_SHARE else None
    half = int(value) // 2
    return str(half) if half >= LEAST_TOKENS else None


def changed(argv: Sequence[str], changes: Sequence[Change]) -> list[str]:
    """Return `argv` with the values of `changes`."""
    words = list(argv)
    for change in changes:
        words = [*without(words, change.option), change.option, change.after]
    return words


def saved_step(folder: Path) -> tuple[int, int] | None:
    """Return number and time, in ns, of the newest checkpoint in `folder`; None if there is none."""
    step = trained_number(folder)
    return None if step is None else (step, (folder / CHECKPOINT_TRACKER).stat().st_mtime_ns)


def going_on(run: Run, save: Path) -> Run:
    """Return `run` as it continues from its own checkpoint in `save`, whatever checkpoint it began with."""
    trainer = run.config.trainer
    names = {*names_in(run.extra), *map(option_name, trainer.own_flags)}
    gone = {*BEGINNING, *(() if UNSAVED_OPTIMIZER in names else (NO_OPTIMIZER,))}
    flags = {name: value for name, value in trainer.own_flags.items() if option_name(name) not in gone}
    options = split_options(run.extra)
    extra = tuple(word for words in options if words[0].partition("=")[0] not in gone for word in words)
    config = structs.replace(run.config, trainer=structs.replace(trainer, load=str(save), flags=flags))
    return structs.replace(run, config=config, extra=extra)


def run_to_end(command: Command, remake: Remake) -> None:
    """Run the trainer to its end. `remake` makes the command of a changed run."""
    if command.problems:
        raise ConfigError(command.problems[0])
    for note in command.notes:
        logger.warning("%s", note)
    attempts = _Attempts(command, remake)
    _link_saved(command.request)
    ending: dict[str, Any] = {"error": BROKE_OFF}
    summary = SummaryFile(command.request.run.folder, lambda: _summary_of(attempts.command))
    try:
        with interrupt.listening(), interrupt.notified(summary.interrupted):
            while (failure := _attempt(attempts.command)) is not None:
                attempts.next(failure)
        ending = {}
    except KeyboardInterrupt:
        ending = {"interrupted": True}
        raise
    except (OrlError, OSError) as error:
        ending = {"error": shown(str(error))}
        raise
    finally:
        summary.end(ending)
        turn_count.clear(command.request.run.folder)
        _write_notes(command)


def _link_saved(request: LaunchRequest) -> None:
    """Let `checkpoint` in the run's folder lead to the checkpoints that the run saves elsewhere."""
    link = request.run.folder / CHECKPOINT
    if link.absolute() != request.save and not link.exists():
        with boundary(OrlError, f"linking {link} to {request.save}"):
            link.symlink_to(request.save)


def _write_notes(command: Command) -> None:
    """Write the notes of the checkpoint that the run saved, and of its critic."""
    save, trainer = command.request.save, command.request.installation.trainer
    model = value_of(command.argv, "--hf-checkpoint") or ""
    with boundary(OrlError, f"writing the note of the checkpoint in {save}"):
        note_saved(save, trainer, model)
        if command.request.estimator.critic:
            note_saved(critic_folder(str(save)), trainer, model, critic=True)


class _Attempts:
    """The attempts of one run. `command` is that of the present one."""

    def __init__(self, command: Command, remake: Remake) -> None:
        self.command = command
        self._first = command
        self._remake = remake
        self._changes: list[Change] = []
        self._restarts = 0
        self._found = saved_step(command.request.save)
        self._latest = self._found  # at the beginning of the present attempt

    def next(self, failure: tuple[int, Failure]) -> None:
        """Make the command of the next attempt, and record it.

        If trainer and engines share GPUs, a dead engine ends the trainer. A new attempt helps if the one before saved
        a later checkpoint: so each makes progress.

        Raises:
            OrlError: it is the last attempt that failed.
        """
        code, why = failure
        request = self._first.request
        allowed = request.cluster.memory_retries
        allowed = RETRIES if allowed is None else allowed
        change = None
        if why.lacks_gpu_memory and len(self._changes) < allowed:
            change = next_change(self.command.argv, request.names, self._changes, in_engine=why.in_engine)
        checkpoint = saved_step(request.save)
        later = checkpoint is not None and (self._latest is None or checkpoint[0] > self._latest[0])
        if change is None and not (why.engine_gone and later):
            raise self._error(code, why)
        self._changes += [change] if change else []
        self._latest = checkpoint
        self._restarts += 1
        goes_on = checkpoint is not None and (checkpoint != self._found or request.loads_own)
        command = self._remake(going_on(request.run, request.save)) if goes_on else self._first
        self.command = structs.replace(command, argv=tuple(changed(command.argv, self._changes)))
        record = Recovery(
            attempt=self._restarts,
            **(structs.asdict(change) if change else {}),
            checkpoint=checkpoint[0] if checkpoint and goes_on else None,
            error=shown(why.error),
            seconds=round(time.monotonic() - request.run.started, 1),
        )
        logger.warning("%s", record.text)
        add_recovery(request.run.folder, record)

    def _error(self, code: int, why: Failure) -> OrlError:
        request = self._first.request
        tried = f", after {self._restarts} restarts" if self._restarts else ""
        advice = [self._first.memory] if why.lacks_memory else []
        if why.lost_node:
            saved = saved_step(request.save) is not None
            then = f"continue the run with --load {request.run.folder}" if saved else "start the run again"
            advice.append(f"Ray lost {why.lost_node}, which ends a run: start Ray there, then {then}")
        advice += [UNEQUAL_WEIGHTS] if why.unequal_weights else []
        ended = f"{request.installation.trainer} ended with exit code {code}{tried}"
        return OrlError("; ".join([f"{ended}: {why.error} (see {request.run.folder / process.LOG})", *advice]))


def _attempt(command: Command) -> tuple[int, Failure] | None:
    """Run the trainer once, on a Ray cluster of this attempt's own. Return exit code and cause if it failed."""
    request, folder = command.request, command.request.run.folder
    log = folder / process.LOG
    start = log.stat().st_size if log.is_file() else 0
    for path, content in {**command.files, request.custom_config: custom_config(request)}.items():
        path.write_bytes(content)
    write_eval_sets(request.run)
    environment, needs = environment_of(command), required_env(command)
    python, gpus = request.installation.python, request.layout.per_node
    cluster = ray_cluster(python, environment, gpus=gpus, log=folder / "ray.log", needs=needs)
    watch = Watch(command)
    with (
        working(partial(_work, folder)),
        cluster as ray,
        followed(log, folder / "metrics.jsonl", start=start, judge=watch.judge),
    ):
        code = process.run(command.words, ray, log=log, hidden=needs.names, check=watch.check)
    if code:
        return code, process.failure_of(log, start=start)
    watch.check_weights()  # the last steps may have been read after the trainer ended
    return None


def _work(folder: Path) -> str:
    """Return what the trainer does now: "" until an engine answers."""
    turns = turn_count.read(folder)
    return f"{turns.answered} turns answered, {turns.open} rollouts open" if turns.answered else ""


def _summary_of(command: Command) -> Summary:
    run = command.request.run
    record = Summary.of(run.config, metrics_log.read(run.folder / "metrics.jsonl"))
    return structs.replace(
        record,
        # The log hook of a trainer times the rollouts of a step, not the training after them.
        seconds_per_step=msgspec.UNSET,
        rollout_seconds_per_step=record.seconds_per_step,
        seconds_total=round(time.monotonic() - run.started, 1),
        command=command.words,
        **run.facts,
    )
