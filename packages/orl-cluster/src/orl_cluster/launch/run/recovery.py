"""Recovery from a lack of GPU memory: the next change of the command line, and the run that continues.

No trainer is named here. Training needs the larger of two: the tokens of a GPU, and the longest rollout. The larger
one is lowered first, twice; then the engines' share. If an engine ran out of memory, its share comes first. An option
that the user gave by the trainer's own name is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct, structs
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, trained_number
from orl_rollout.run_folder.contract import Run

from orl_cluster.launch.argv import names_in, option_name, split_options, value_of, without
from orl_cluster.launch.command.layout import CONTEXT, PER_GPU
from orl_cluster.launch.options import CONTEXT_PARALLEL

RETRIES = 3
ENGINES = "--sglang-mem-fraction-static"
LEAST_TOKENS = 1024
LEAST_SHARE, SHARE_STEP = 0.3, 0.15
# Options that say where a run begins, and how. The run's own checkpoint replaces them.
BEGINNING = ("--load", "--ckpt-step", "--critic-load", "--finetune", "--start-rollout-id")
NO_OPTIMIZER, UNSAVED_OPTIMIZER = "--no-load-optim", "--no-save-optim"


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
    context, tokens, parallel = (int(value_of(argv, name) or 1) for name in (CONTEXT, PER_GPU, CONTEXT_PARALLEL))
    training = (CONTEXT, PER_GPU) if context > tokens * parallel else (PER_GPU, CONTEXT)
    engines = sum(change.option == ENGINES for change in changes)
    rounds = {ENGINES: engines, **dict.fromkeys(training, (len(changes) - engines) // 2)}
    for option in sorted((ENGINES, *training) if in_engine else (*training, ENGINES), key=rounds.__getitem__):
        before = value_of(argv, option)
        after = _lowered(option, before) if before and option not in own else None
        if before and after:
            return Change(option=option, before=before, after=after)
    return None


def _lowered(option: str, value: str) -> str | None:
    """Return the next lower value of an option; None below the least."""
    if option == ENGINES:
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


class SavedStep(Struct, frozen=True):
    """The newest checkpoint in a folder: the trainer's number, and when it was written, in ns."""

    number: int
    written: int


def saved_step(folder: Path) -> SavedStep | None:
    """Return the newest checkpoint that training wrote to `folder`; None if there is none."""
    number = trained_number(folder)
    return None if number is None else SavedStep(number, (folder / CHECKPOINT_TRACKER).stat().st_mtime_ns)


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
