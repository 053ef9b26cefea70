"""A file with the keys of the OpenReward cookbook: `thinking: true` masks reasoning, as it does there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from orl_core.config import decode_config, load_config

FILE = """
environments:
  Org/Env: {splits: [train], nonterminal_reward: 0.0, reward_reduction: sum, max_turns: 20}
secrets: {openai_api_key: null}
system_prompt_template: "Use {tools}"
thinking: true
openreward_run_name: run
"""


def trains_reasoning(tmp_path: Path, text: str, *overrides: str) -> bool:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path, overrides, {"trainer.model": "some/model"})
    travelled = decode_config(msgspec.json.decode(msgspec.json.encode(config.public())), "orl_config")
    assert travelled.rollout.train_on == config.rollout.train_on
    return config.rollout.train_on.reasoning


def test_thinking_of_a_cookbook_file_masks_reasoning(tmp_path: Path) -> None:  # shows A6 D9
    assert not trains_reasoning(tmp_path, FILE)
    assert not trains_reasoning(tmp_path, "environments: {Org/Env: {}}\nthinking: true")
    assert trains_reasoning(tmp_path, FILE, "rollout.train_on.reasoning=true")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("thinking: true", "thinking: keep"),
        ("thinking: true", "thinking: strip"),
        ("thinking: true", "thinking: false"),
        ("thinking: true", ""),
        ("max_turns: 20", "max_turns: 20, eval_splits: [test]"),
        ("thinking: true", "thinking: true\nrollout: {}"),
        ("thinking: true", "thinking: true\ntrainer: {backend: slime}"),
    ],
)
def test_reasoning_trains_in_every_other_file(tmp_path: Path, old: str, new: str) -> None:
    assert old in FILE
    assert trains_reasoning(tmp_path, FILE.replace(old, new))
