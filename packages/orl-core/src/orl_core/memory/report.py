"""Compares estimates with the GPUs that are there: a table for people, problems and notes with what would fit.

Pure: the GPUs are handed in. A problem is only what clearly cannot fit; an estimate is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from orl_core.memory.training import Memory

GIB = 2**30
TOO_MUCH = 1.15  # of a whole GPU: above it an estimate is a problem, whatever its error
ROOM = 0.95  # of the free memory: below it a change counts as one that fits


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU: its memory, and what is free of it, in bytes. `free` is None if the GPU does not answer."""

    total: int
    free: int | None = None


class Lever(Struct, frozen=True, kw_only=True):
    """A change of the command line, and the bytes on one GPU with it."""

    words: str
    needed: int


class Phase(Struct, frozen=True, kw_only=True):
    """Memory of one GPU in one phase of a run. `needed` are the bytes that must fit into `share` of it, at the worst.

    `least` are those that every run needs, `needed` if it is None; `when` says when it needs more. `levers` has a group
    for each option that lowers `needed`, with ever stronger changes.
    """

    name: str
    memory: Memory
    needed: int
    least: int | None = None
    when: str = ""
    share: float = 1.0
    levers: tuple[tuple[Lever, ...], ...] = ()


class MemoryReport(Struct, frozen=True, kw_only=True):
    """The estimate of a run: a table, faults that keep the run from fitting, and notes."""

    table: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def report_of(phases: Sequence[Phase], gpus: Sequence[Gpu], remarks: Sequence[str] = ()) -> MemoryReport:
    """Return the table of `phases` with `remarks` below it, and the verdict on each phase where there are `gpus`."""
    table = "\n".join([*_table(phases), found(gpus), *remarks])
    if not gpus:
        return MemoryReport(table=table)
    whole, free = min(gpu.total for gpu in gpus), least_free(gpus)
    impossible = [phase for phase in phases if _least(phase) > TOO_MUCH * whole]
    tight = [phase for phase in phases if phase not in impossible and phase.needed > phase.share * free]
    return MemoryReport(
        table=table,
        problems=tuple(_told(structs.replace(phase, when=""), _least(phase), whole, free) for phase in impossible),
        notes=tuple(_told(phase, phase.needed, whole, free) for phase in tight),
    )


def _least(phase: Phase) -> int:
    return phase.needed if phase.least is None else phase.least


def least_free(gpus: Sequence[Gpu]) -> int:
    """Return the free bytes of the fullest GPU; one that does not answer counts as empty."""
    return min(gpu.total if gpu.free is None else gpu.free for gpu in gpus)


def found(gpus: Sequence[Gpu]) -> str:
    """Return one line on the GPUs."""
    if not gpus:
        return "no GPU found: the estimate is compared with nothing"
    count = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    free = [gpu.free for gpu in gpus if gpu.free is not None]
    told = f"{_gib(min(free))} GiB are free on the fullest" if free else "their free memory is not known"
    return f"{count} of {_gib(min(gpu.total for gpu in gpus))} GiB found; {told}"


def _table(phases: Sequence[Phase]) -> list[str]:
    head = f"{'GiB on each GPU':<16}" + "".join(f"{phase.name:>12}" for phase in phases)
    rows = [
        f"{name.replace('_', ' '):<16}" + "".join(f"{_cell(getattr(phase.memory, name)):>12}" for phase in phases)
        for name in Memory.__struct_fields__
    ]
    return [head, *rows, f"{'sum':<16}" + "".join(f"{_cell(phase.memory.total):>12}" for phase in phases)]


def _told(phase: Phase, needed: int, whole: int, free: int) -> str:
    """Return what is wrong with a phase, and what would fit."""
    share = f" and may take {phase.share:g} of it" if phase.share < 1 else ""
    said = f"{phase.name} needs about {_gib(needed)} GiB on each GPU{phase.when}{share}; it has {_gib(whole)} GiB"
    if free < whole:
        said = f"{said}, {_gib(free)} free"
    groups = [group for group in phase.levers if group]
    room = ROOM * phase.share * free
    fitting = [next((lever.words for lever in group if lever.needed <= room), "") for group in groups]
    if any(fitting):
        return f"{said}. Any of these would fit: {'; '.join(filter(None, fitting))}"
    if groups:
        return f"{said}. None of these is enough alone: {'; '.join(group[-1].words for group in groups)}"
    return said


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def _cell(size: int) -> str:
    return _gib(size) if size else ""
