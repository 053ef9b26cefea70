"""Difficulty: tasks of a wanted mean reward are drawn, and nothing asks where nobody set it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import decode_config
from orl_core.errors import ConfigError, SessionError
from orl_rollout.openreward.environment import TaskListing
from orl_rollout.tasks.file import read_tasks
from orl_rollout.tasks.prepare import Selection, prepare

from tests.launcher.platform_api import Platform, platform_api

REWARDS = {0: 0.0, 1: 0.5, 2: 0.9, 3: 1.0}  # of the six tasks of Echo's training split


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with platform_api() as server:
        server.difficulty = {"train": REWARDS, "test": {0: 1.0}}
        monkeypatch.setenv("OPENREWARD_API_URL", server.url)
        monkeypatch.setenv("OPENREWARD_API_KEY", "the-platform-key")
        yield server


async def drawn(gallery: Any, folder: Path, settings: dict[str, Any], **options: Any) -> list[int]:
    tree = {"environments": {"gallery/Echo": {"base_url": gallery.url, **settings}}}
    config = decode_config(tree, "test")
    await prepare(config, folder / "tasks.jsonl", **options)
    return sorted(task.index for task in read_tasks(folder / "tasks.jsonl", config) if task.index is not None)


@pytest.mark.parametrize(
    ("difficulty", "indices"),
    [
        ({"min_reward": 0.1, "max_reward": 0.9, "unknown": "skip"}, [1, 2]),
        ({"max_reward": 0.5, "unknown": "skip"}, [0, 1]),
        ({"unknown": "skip"}, [0, 1, 2, 3]),
    ],
)
async def test_tasks_of_another_difficulty_are_skipped(
    gallery: Any, tmp_path: Path, platform: Platform, difficulty: dict[str, Any], indices: list[int]
) -> None:
    assert await drawn(gallery, tmp_path, {"difficulty": difficulty}) == indices
    assert platform.asked == [("/v1/environments/gallery/Echo/task-difficulty?split=train", "the-platform-key")]


BETWEEN = {"difficulty": {"min_reward": 0.1, "max_reward": 0.9}}


async def test_unknown_tasks_are_kept_unless_skipped(gallery: Any, tmp_path: Path, platform: Platform) -> None:
    assert {1, 2, 4} <= set(await drawn(gallery, tmp_path, BETWEEN))
    assert not {0, 3} & set(await drawn(gallery, tmp_path, BETWEEN))


async def test_held_out_splits_are_measured_whole(gallery: Any, tmp_path: Path, platform: Platform) -> None:
    settings = {"difficulty": {"max_reward": 0.5, "unknown": "skip"}, "eval_splits": ["test"]}
    assert await drawn(gallery, tmp_path, settings, splits=("eval_splits",)) == [0, 1, 2]
    assert not platform.asked


async def test_difficulty_that_cannot_be_known_is_refused(
    gallery: Any, tmp_path: Path, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"difficulty": {"min_reward": 2, "unknown": "skip"}}
    with pytest.raises(ConfigError, match="difficulty"):
        await drawn(gallery, tmp_path, nowhere)
    platform.difficulty = {}
    with pytest.raises(ConfigError, match="difficulty"):
        await drawn(gallery, tmp_path, BETWEEN)
    platform.needed = None
    with pytest.raises(SessionError, match="HTTP 500"):
        await drawn(gallery, tmp_path, BETWEEN)
    monkeypatch.delenv("OPENREWARD_API_KEY")
    with pytest.raises(ConfigError, match="OPENREWARD_API_KEY"):
        await drawn(gallery, tmp_path, BETWEEN)


def test_even_tasks_are_drawn_first_and_by_seed() -> None:
    listing: Any = TaskListing(env_name="A/B", split="train", size=3, remote=None)  # type: ignore[arg-type]
    selection = Selection(listing=listing, indices=[5, 6, 7], weights=[0.25, 0.01, 0.01])
    firsts = Counter(selection.order(1, str(seed))[0] for seed in range(500))
    assert firsts[5] > 400  # 0.25 of 0.27
    assert min(firsts[6], firsts[7]) > 0
    assert list(selection.order(1, "a")) == list(selection.order(1, "a"))
    assert sorted(selection.order(2, "a")) == [5, 6, 7]
