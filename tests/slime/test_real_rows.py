"""Rows of plain prompts beside tasks, in one run: slime plays and scores them, and our hooks bear them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core.task import TaskRow

from tests.kit.cookbook_row import cookbook_row
from tests.slime import episode
from tests.slime.host import of_slime
from tests.slime.playing import engine, hosting

pytestmark = pytest.mark.slime
LABEL = "I give up"
SOURCES = "tests.slime.sources"


def mix(path: Path, prompt: Any) -> Path:
    """One task of orl, and one row as slime's users write them."""
    row = {"prompt": prompt, "label": LABEL, "metadata": {"rm_type": "f1"}}
    episode.make_tasks(path, 1)
    path.write_text(path.read_text(encoding="utf-8") + json.dumps(row) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("thinking", [False, "strip"])
@pytest.mark.parametrize("chat", [True, False])
async def test_plain_and_chat_rows_use_slimes_rollout_and_reward(
    thinking: Any, chat: bool, environment: str, checkpoint: Path, tmp_path: Path
):
    question = "A number of 100 to 111?"
    messages = [{"role": "user", "content": question}]
    prompt = messages if chat else f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    changes = {
        "apply_chat_template": chat,
        "custom_rm_path": "orl_slime.hooks.reward",
        "post_process": "orl_slime.hooks.post_process",
        "prompt_data": str(mix(tmp_path / "mix.jsonl", prompt)),
        "orl_folder": str(tmp_path),
    }
    config = episode.settings(environment) | {"thinking": thinking}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, config, **changes) as host,
    ):
        f1_score = of_slime("slime.rollout.rm_hub.f1_score")

        tasks, plain = await asyncio.to_thread(host.rollout)
        data = host.train_data([tasks, plain])
        host.log([tasks, plain])
        host.hold_out("mix", tmp_path / "mix.jsonl", apply_chat_template=chat)
        evaluated = await asyncio.to_thread(host.evaluate)
        host.log_evaluation(evaluated)
    plain = [sample for call in plain for sample in (call if thinking else [call])]
    assert {sample.status.value for sample in plain} == {"completed"}
    assert sorted(round(sample.reward, 3) for sample in plain) == sorted(
        round(f1_score(sample.response, LABEL)[0], 3) for sample in plain
    )
    assert len({sample.reward for sample in plain}) == 2
    assert data["rewards"] == pytest.approx([0.7071 if raw > 0.5 else -0.7071 for raw in data["raw_reward"]], abs=1e-3)
    assert all(any(mask) for mask in data["loss_masks"])
    assert len(evaluated["mix"]["rewards"]) == 4


async def test_a_row_that_slime_cannot_play_does_not_end_the_job(environment: str, checkpoint: Path, tmp_path: Path):
    rows = mix(tmp_path / "mix.jsonl", [{"role": "user", "content": "no template is applied to it"}])
    changes = {"post_process": "orl_slime.hooks.post_process", "prompt_data": str(rows)}
    config = episode.settings(environment)
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        tasks, plain = await asyncio.to_thread(host.rollout)
        data = host.train_data([tasks, plain])
    assert [sample.status.value for sample in plain] == ["failed", "failed"]
    assert data["rewards"][2:] == [0.0, 0.0]
    assert [any(mask) for mask in data["loss_masks"]] == [True, True, False, False]


async def test_tasks_of_the_cookbook_play_and_train(environment: str, checkpoint: Path, tmp_path: Path):
    """slime hands over the text of their metadata as it is."""
    path = episode.make_tasks(tmp_path / "tasks.jsonl", 2)
    rows = [cookbook_row(msgspec.json.decode(line, type=TaskRow).metadata) for line in path.read_bytes().splitlines()]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    changes = {"post_process": "orl_slime.hooks.post_process", "prompt_data": str(path)}
    config = episode.settings(environment)
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert {sample.status.value for group in groups for sample in group} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])


def indices(groups: list[list[Any]]) -> list[int]:
    """Return the tasks of groups, by their place in the split."""
    return [group[0].metadata["index"] for group in groups]


async def test_own_data_source_and_buffer_filter_feed_rollouts(environment: str, checkpoint: Path, tmp_path: Path):
    own = {"data_source_path": f"{SOURCES}.LastFirst", "buffer_filter_path": f"{SOURCES}.newest_first"}
    changes = {"post_process": "orl_slime.hooks.post_process", **own}
    config = episode.settings(environment)
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        first = await asyncio.to_thread(host.rollout)
        host.source.add_samples(first)
        again = await asyncio.to_thread(host.rollout, 1)
        data = host.train_data(again)
    assert sorted(indices(first)) == sorted(indices(again)) == [6, 7]
    assert {sample.metadata.get("drawn") for group in again for sample in group} == {"newest first"}
    assert {sample.status.value for group in again for sample in group} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])
