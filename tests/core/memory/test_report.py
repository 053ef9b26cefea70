"""The report of an estimate, beside the GPUs that are there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from orl_core.memory import Gpu, Lever, Memory, Phase, report_of

GIB = 2**30


def phase(needed: float, *, share: float = 1.0, levers: tuple[tuple[Lever, ...], ...] = ()) -> Phase:
    size = round(needed * GIB)
    return Phase(name="training", memory=Memory(weights=size), needed=size, share=share, levers=levers)


def group(*pairs: tuple[str, float]) -> tuple[Lever, ...]:
    return tuple(Lever(words=words, needed=round(needed * GIB)) for words, needed in pairs)


def test_table_sums_each_phase():
    memory = Memory(weights=2 * GIB, optimizer=3 * GIB)
    table = report_of([Phase(name="engine", memory=memory, needed=0)], ()).table
    assert [line.split() for line in table.split("\n")][-2:] == [["sum", "5.0"], table.split("\n")[-1].split()]
    assert "no GPU found" in table


def test_gpu_that_does_not_answer_counts_as_empty():
    found = report_of([phase(70)], [Gpu(total=80 * GIB)])
    assert (found.problems, found.notes) == ((), ())
    assert "free memory is not known" in found.table


def test_mildest_change_of_each_option_is_proposed():
    levers = (group(("--a 2", 60), ("--a 1", 30)), group(("--b 4", 75), ("--b 2", 70)), group(("--c", 90)))
    (told,) = report_of([phase(100, levers=levers)], [Gpu(total=80 * GIB, free=72 * GIB)]).problems
    assert told.partition("would fit: ")[2] == "--a 2"
    (told,) = report_of([phase(100, levers=levers)], [Gpu(total=80 * GIB, free=79 * GIB)]).problems
    assert told.partition("would fit: ")[2] == "--a 2; --b 4"


def test_share_limits_a_note_and_not_a_problem():
    gpu = Gpu(total=80 * GIB, free=80 * GIB)
    (told,) = report_of([phase(60, share=0.7)], [gpu]).notes
    assert "0.7" in told
    assert report_of([phase(50, share=0.7)], [gpu]).notes == ()


@given(needed=st.floats(0, 200), total=st.integers(1, 141), used=st.floats(0, 1))
def test_problem_is_above_the_gpu_and_note_above_what_is_free(needed: float, total: int, used: float):
    gpu = Gpu(total=total * GIB, free=round(total * GIB * (1 - used)))
    found = report_of([phase(needed)], [gpu])
    assert len(found.problems) + len(found.notes) <= 1
    assert bool(found.problems) == (round(needed * GIB) > 1.15 * gpu.total)
    assert bool(found.problems or found.notes) == (round(needed * GIB) > min(gpu.free or 0, 1.15 * gpu.total))
