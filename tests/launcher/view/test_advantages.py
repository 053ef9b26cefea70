"""Advantages that the viewer makes again: those of the trainers, and none where more than rewards makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.reward import group_advantages, turn_advantages
from orl_core.trajectory import StopReason
from orl_launcher.view.index import Index, IndexRow
from orl_launcher.view.pages import advantages_of
from orl_rollout.episodes.frames import frame
from orl_rollout.episodes.journal import Entry, encode_entry

from tests.kit.journalled import config_of, entry_of, trajectory_of
from tests.kit.pages import Outline
from tests.launcher.synthetic import make_run
from tests.launcher.view.runs import TOKEN, viewed


def tree(trainer: dict[str, Any] | None = None, size: int | None = 2, **fields: Any) -> dict[str, Any]:
    sums = {"a/b": {"reward_reduction": "sum"}}
    return config_of(**{"trainer": {"n_samples": size, **(trainer or {})}, "environments": sums, **fields}).public()


def group(*rewards: float, turns: int = 1, step: int = 1) -> list[Entry]:
    return [
        structs.replace(entry_of(trajectory_of(key=f"{step}-{number}", turns=turns)), reward=reward, step=step)
        for number, reward in enumerate(rewards)
    ]


def test_advantages_are_those_of_the_trainers() -> None:
    rewards, entries = [1.0, 0.0, 0.25, 0.0], group(1.0, 0.0, 0.25, 0.0, turns=2)
    broken = structs.replace(entries[3].trajectory, stop_reason=StopReason.ERROR)
    entries[3] = structs.replace(entries[3], trajectory=broken)
    trains = [True, True, True, False]
    expected = group_advantages(rewards, [0] * 4, range(4), trains, center=True, scale=True)
    assert advantages_of(tree(size=4), 4, entries) == [[value] * 2 for value in expected]
    assert expected[3] == 0.0 < expected[0]


def test_turns_have_advantages_of_their_own() -> None:
    entries = group(2.0, 3.0, turns=2)  # each turn is paid 1: the second one a gift of 1 at the end
    returns = [[2.0, 1.0], [3.0, 2.0]]
    expected = turn_advantages(returns, [0, 0], [True, True], center=True, scale=True)
    assert advantages_of(tree(turn_advantages=True), 2, entries) == expected


@pytest.mark.parametrize(
    "config",
    [
        tree({"advantage_estimator": "ppo"}),
        tree({"advantage_estimator": "reinforce_plus_plus_baseline"}),
        tree({"advantage_estimator": "one-of-mine"}),
        tree({"n_samples": 16}),
        tree(size=None),
        tree({"backend": "not-here"}, size=None),
        tree({"flags": {"--scale-rewards": "batch"}}),
        tree({"flags": {"--disable-rewards-normalization": True}}),
        tree(group_reward={"mode": "blend"}),
        {"trainer": None},
    ],
)
def test_other_advantages_are_not_guessed(config: dict[str, Any]) -> None:
    assert advantages_of(config, 2, group(1.0, 0.0)) == []


def test_equal_rewards_have_no_advantage_in_a_group_of_the_trainers_own_size() -> None:
    assert advantages_of(tree({"backend": "local"}, size=None), 16, group(*[1.0] * 16)) == [[0.0]] * 16
    assert advantages_of(tree(size=65), 65, group(*[1.0] * 65)) == []


@pytest.mark.parametrize(("number", "role", "told"), [(7, "i", 2), (30, "t", 0), (70, "t", 0)])
async def test_pages_grey_what_has_no_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, role: str, told: int
) -> None:
    read, whole = list[IndexRow](), Index.entry
    monkeypatch.setattr(Index, "entry", lambda self, row: read.append(row) or whole(self, row))
    make_run(tmp_path / "runs" / "local", steps=2)
    with (tmp_path / "runs" / "local" / "journal-9.jsonl.zst").open(
        "wb"
    ) as file:  # 16 rollouts are a group, 40 are none
        for entry in (*group(*[1.0] * 16), *group(*[1.0] * 40, step=2), *group(*[0.0, 1.0] * 8, step=3)):
            file.write(frame(encode_entry(entry)))
    async with viewed(tmp_path / "runs") as client:
        pages = [
            await (await client.get(f"/{TOKEN}/run/local/{view}/{number}")).text()
            for view in ("episode", "group", "task")
        ]
    assert sum("this group did not train" in page for page in pages) == told
    assert (len(read) < 50) == (number == 30)  # 40 rollouts that are not compared are not read
    for page in pages[:2]:
        outline = Outline()
        outline.feed(page)
        shown = {name: outline.classes[name] - 1 for name in "ti"}  # the legend has one of each
        assert min(shown.values()) == 0 < shown[role]
    assert ("advantage 0.968" in pages[0], ">-0.968<" in pages[1]) == ((True, True) if number == 70 else (False, False))
