"""`just nightly newest`: bounds are lifted, what breaks tests is found in few runs, and every run ends."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from tests import newest

ROOT = Path(__file__).parents[1]
NAMES = tuple(f"package-{n:02}" for n in range(32))
MOVING = ("transformers", "trl", "openreward", "tinker", "sglang-router")  # orl uses names of them that move


@pytest.mark.parametrize("name", MOVING)
def test_moving_package_has_an_upper_bound_which_is_lifted(name: str) -> None:
    texts = [text for file in ROOT.glob("*/*/pyproject.toml") for text in file.read_text("utf-8").split('"')]
    texts += (ROOT / "pyproject.toml").read_text("utf-8").split('"')
    bounds = {text.partition("<")[2] for text in texts if text.startswith(f"{name}") and "<" in text}
    assert len(bounds) == 1
    lifted = [one for one in map(Requirement, newest.requirements(ROOT)) if one.name == name]
    assert lifted
    assert all(one.specifier.contains("1000") for one in lifted)


def test_requirements_are_those_of_packages_and_dev_without_upper_bounds(tmp_path: Path) -> None:
    folder = tmp_path / "packages" / "orl-one"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("""\
[project]
name = "orl-one"
dependencies = ["orl-two>=0.1,<0.2", "both>=1.2,<1.5", "lower>=3"]
optional-dependencies = { more = ["extra[it]>=2,!=2.1,<=4; python_version > '3'"] }
""")
    (tmp_path / "pyproject.toml").write_text("""\
[dependency-groups]
dev = ["upper<4", { include-group = "docs" }, "orl-one[more]"]
docs = ["page"]
other = ["unseen"]
""")
    assert newest.requirements(tmp_path) == [
        "both>=1.2",
        'extra[it]!=2.1,>=2; python_version > "3"',
        "lower>=3",
        "page",
        "upper",
    ]


@given(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3))
def test_search_finds_the_packages_that_break_together(broken: set[str]) -> None:
    assert {*newest.smallest(NAMES, lambda part: broken <= {*part})} == broken


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_one_package_in_few_runs(name: str) -> None:
    runs: list[newest.Part] = []

    def failing(part: newest.Part) -> newest.Failed:
        runs.append(part)
        by_chance = {f"chance-{len(runs) % 2}", "old"}
        return frozenset({"a", "b"} | by_chance if name in part else by_chance)

    assert newest.culprits(NAMES, failing, lambda: False) == (name,)
    assert len(runs) <= 12  # all, none, and two for each halving


@pytest.mark.parametrize("failed", [frozenset({"old"}), frozenset()])
def test_failure_that_no_new_version_makes_has_no_culprit(failed: newest.Failed) -> None:
    assert newest.culprits(NAMES, lambda _: failed, lambda: False) == ()


def test_search_that_is_out_of_time_gives_what_is_left() -> None:
    asked = count()
    left = newest.culprits(NAMES, lambda part: frozenset(NAMES[:1]) & {*part}, lambda: next(asked) > 1)
    assert left == NAMES[:8]


def test_failure_before_any_test_collects_again() -> None:
    words = newest.again(["tests/core"], [])
    assert (words[0], words[-1]) == ("tests/core", "--collect-only")


def test_run_gives_failed_tests_and_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("bin", "lib", "pyvenv.cfg"):
        (tmp_path / part).symlink_to(Path(sys.prefix) / part)
    monkeypatch.setattr(newest, "PLACE", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds
    tests = tmp_path / "test_it.py"
    tests.write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    words = [str(tests), "--rootdir", str(tmp_path), "-q", "-p", "no:cacheprovider"]
    assert newest.run_tests(words, 120) == (pytest.ExitCode.TESTS_FAILED, ["test_it.py::test_bad"])
    assert newest.run_tests(words, 0.1) == (newest.OVERDUE, [])
