"""The index of a journal: every whole record once, as the journal grows, is torn or is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import ConfigError, OrlError
from orl_core.trajectory import StopReason
from orl_launcher.view.server import PAGE, Index
from orl_rollout.episodes.journal import Entry, encode_entry, frame

from tests.kit.journalled import entry_of, trajectory_of, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def index(folder: Path) -> Index:
    return Index(folder)


def grown(index: Index) -> int:
    """Refresh the index. Return the number of its rows."""
    index.refresh()
    return len(index.rows)


def total(index: Index, **chosen: str) -> int:
    return index.page(chosen, 0).total


def test_index_grows_with_the_journal(index: Index, folder: Path) -> None:
    path = write(folder, trajectory_of(key="a"), trajectory_of(key="b"))
    assert (grown(index), grown(index)) == (2, 2)
    whole = frame(encode_entry(entry_of(trajectory_of(key="c"))))
    with path.open("ab") as file:
        file.write(whole[:20])
    assert grown(index) == 2
    with path.open("ab") as file:
        file.write(whole[20:])
    write(folder, trajectory_of(key="d"), name="2")
    assert grown(index) == 4
    assert [(row.number, index.entry(row).key) for row in index.rows] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert index.progress() == 1.0


def test_large_journal_is_read_bit_by_bit(index: Index, folder: Path) -> None:
    write(folder, trajectory_of(key="a"), trajectory_of(key="b"))
    index.refresh(0.0)
    assert (len(index.rows), round(index.progress(), 1)) == (1, 0.5)
    assert grown(index) == 2


def test_replaced_attempts_are_left_out(index: Index, folder: Path) -> None:
    path = write(folder, trajectory_of(key="a"))
    with path.open("ab") as file:
        file.write(frame(encode_entry(structs.replace(entry_of(trajectory_of(key="b")), replaced=True))))
    write(folder, trajectory_of(key="b"))
    assert grown(index) == 2


def test_torn_and_foreign_records_are_left_out(index: Index, folder: Path) -> None:
    path = write(folder, trajectory_of(key="a"))
    with path.open("ab") as file:
        file.write(frame(b'{"other": 1}\n') + b"torn" + frame(b"\xff"))
    write(folder, trajectory_of(key="b"))
    assert grown(index) == 2


def test_replaced_file_is_read_anew(index: Index, folder: Path) -> None:
    path = write(folder, trajectory_of(key="a"), trajectory_of(key="b"))
    assert grown(index) == 2
    path.unlink()
    write(folder, trajectory_of(key="c"))
    assert grown(index) == 1


def test_cut_journal_is_an_error(index: Index, folder: Path) -> None:
    path = write(folder, trajectory_of(key="a"))
    grown(index)
    path.write_bytes(b"")
    with pytest.raises(OrlError):
        index.entry(index.rows[0])


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 5)),
            st.floats(-1, 1),
            st.booleans(),
            st.booleans(),
            st.sampled_from([StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.ERROR]),
        ),
        max_size=12,
    )
)
def test_filters_choose_what_they_say(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int | None, float, bool, bool, StopReason]]
) -> None:
    folder = tmp_path_factory.mktemp("filters")
    made: list[Entry] = []
    with (folder / "journal-1.jsonl.zst").open("wb") as file:
        for step, reward, success, held_out, reason in drawn:
            trajectory = structs.replace(trajectory_of(), stop_reason=reason)
            trajectory = structs.replace(trajectory, job=structs.replace(trajectory.job, evaluation=held_out))
            entry = structs.replace(entry_of(trajectory), step=step, reward=reward, success=success)
            made.append(entry)
            file.write(frame(encode_entry(entry)))
    index = Index(folder)
    grown(index)
    sound = [entry for entry in made if entry.trajectory.stop_reason is not StopReason.ERROR]
    assert total(index, verdict="error") == len(made) - len(sound)
    assert total(index, verdict="won") == sum(entry.success for entry in sound)
    assert total(index, kind="held-out") == sum(entry.trajectory.job.evaluation for entry in made)
    assert total(index, step_from="2", step_to="3") == sum(entry.step in (2, 3) for entry in made)
    assert total(index, reward_from="0.25") == sum(entry.reward >= 0.25 for entry in sound)
    assert total(index, ending="max_turns") == sum(entry.trajectory.ending == "max_turns" for entry in made)
    assert total(index, environment="a/b") == len(made)
    assert total(index, environment="other") == 0
    first = index.page({}, 0).rows
    assert [row.evaluation for row in first] == sorted(row.evaluation for row in first)  # training, whose tokens train
    for kind in (False, True):
        newest = [row.number for row in first if row.evaluation == kind]
        assert newest == sorted(newest, reverse=True)
    shown = index.page({"order": "highest reward"}, 0).rows
    rewards = [row.reward for row in shown if row.reward is not None]
    assert rewards == sorted((entry.reward for entry in sound), reverse=True)


def test_a_group_is_of_one_task_and_step(index: Index, folder: Path) -> None:
    steps = (1, 1, 2, 3)
    with (folder / "journal-1.jsonl.zst").open("wb") as file:
        for number, step in enumerate(steps):
            entry = structs.replace(entry_of(trajectory_of(key=f"r{number}")), step=step)
            file.write(frame(encode_entry(entry)))
    grown(index)
    row = index.rows[1]
    assert [one.number for one in index.group(row)] == [1, 2]


def test_pages_are_bounded(index: Index, folder: Path) -> None:
    write(folder, *(trajectory_of(key=str(number)) for number in range(PAGE + 1)))
    grown(index)
    first, last = (index.page({}, page) for page in (0, 10**9))
    assert (len(first.rows), first.pages) == (PAGE, 2)
    assert (last.page, len(last.rows)) == (1, 1)


@pytest.mark.parametrize("query", [{"step_from": "x"}, {"order": "id; DROP TABLE episodes"}, {"kind": "all"}])
def test_wrong_filter_is_refused(index: Index, query: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        index.page(query, 0)
