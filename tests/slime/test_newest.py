"""The list of slime's newer files, and what lays them over a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slime import newest


def test_committed_list_names_files_and_places_once():
    files = newest.listed(newest.LIST)
    assert len({one.place for one in files}) == len(files) == 15
    assert all(len(one.commit) == 40 and int(one.commit, 16) for one in files)
    assert not any(Path(one.place).is_absolute() or ".." in one.place for one in files)


def test_files_come_from_a_folder_or_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(newest, "ORIGIN", f"{tmp_path}/")
    origin, checkout = tmp_path / "owner" / "name", tmp_path / "checkout"
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for folder in (origin, checkout):
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    (origin / "new.py").write_text("A = 1\n", encoding="utf-8")
    for command in (["add", "new.py"], [*identity, "commit", "--quiet", "-m", "one"]):
        subprocess.run(["git", "-C", str(origin), *command], check=True)
    head = subprocess.run(
        ["git", "-C", str(origin), "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True
    )
    commit = head.stdout.strip()
    kept = tmp_path / "sources" / "c0ffee" / "kept.py"
    kept.parent.mkdir(parents=True)
    kept.write_text("B = 2\n", encoding="utf-8")
    names = tmp_path / "names"
    names.write_text(f"owner/name {commit} new.py\nelse/where c0ffee kept.py pkg/kept.py\n", encoding="utf-8")
    assert newest.lay(names, checkout, tmp_path / "sources") == ["new.py", "pkg/kept.py"]
    assert (checkout / "new.py").read_text(encoding="utf-8") == "A = 1\n"
    assert (checkout / "pkg" / "kept.py").read_text(encoding="utf-8") == "B = 2\n"
    names.write_text(f"owner/name {commit} new.py fresh.py\nowner/name {commit} nowhere.py\n", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        newest.lay(names, checkout)
    assert not (checkout / "fresh.py").exists()
