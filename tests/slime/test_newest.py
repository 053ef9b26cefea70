"""The list of slime's newer files, and what lays them over a checkout."""

from __future__ import annotations

from pathlib import Path

from tests.slime import newest


def test_committed_list_names_files_and_places_once():
    files = newest.listed(newest.LIST)
    assert len({one.place for one in files}) == len(files) == 15
    assert all(len(one.commit) == 40 and int(one.commit, 16) for one in files)
    assert not any(Path(one.place).is_absolute() or ".." in one.place for one in files)
