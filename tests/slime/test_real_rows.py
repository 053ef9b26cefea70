"""Rows of plain prompts among tasks, in one run: slime plays and scores them, and our hooks bear them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from orl_core.task import TaskRow

from tests.cluster.contract.test_real_contract import mix
from tests.kit.cookbook_row import cookbook_row
from tests.slime import episode
from tests.slime.playing import engine, hosting

pytestmark = pytest.mark.slime


async def test_a_row_that_slime_cannot_play_does_not_end_the_job(environment: str, checkpoint: Path, tmp_path: Path):
    rows = mix(tmp_path / "mix.jsonl", [{"role": "user", "content": "no template is applied to it"}])
    changes = {"prompt_data": str(rows)}
    config = episode.settings(environment)
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        tasks, plain = await asyncio.to_thread(host.rollout)
        data = host.train_data([tasks, plain])
    assert [sample.status.value for sample in plain] == ["failed", "failed"]
    assert data["rewards"][2:] == [0.0, 0.0]
    assert [any(mask) for mask in data["loss_masks"]] == [True, True, False, False]


async def test_tasks_of_the_cookbook_play_and_train(environment: str, checkpoint: Path, tmp_path: Path):  # shows D15
    """slime hands over the text of their metadata as it is."""
    path = episode.make_tasks(tmp_path / "tasks.jsonl", 2)
    rows = [cookbook_row(msgspec.json.decode(line, type=TaskRow).metadata) for line in path.read_bytes().splitlines()]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    changes = {"prompt_data": str(path)}
    config = episode.settings(environment)
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert {sample.status.value for group in groups for sample in group} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])
