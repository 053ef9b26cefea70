"""What a resumed run shares with the one before: each key of the configuration is refused or only listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError
from orl_rollout.run_folder.config_file import write_config
from orl_rollout.training.resume import check_resume

DEFAULTS = {"lr": 1e-5, "temperature": 1.0, "rollout_batch_size": 8, "advantage_estimator": "grpo"}
OPTIONS = {"engine": "sglang", "num_gpus": 2}
BEFORE: dict[str, Any] = {
    "environments": {"A/B": {"base_url": "http://127.0.0.1:1"}},
    "reward": "mine:score",
    "secrets": {"token": "sesame-123"},
    "trainer": {"backend": "local", "n_samples": 4, "num_rollout": 3, "flags": {"local": {"x": 1}}, "local": OPTIONS},
}
REFUSED: list[tuple[str, Any]] = [
    ("reward", "mine:other"), ("reward", None), ("reward_mode", "add"), ("system_prompt_template", "Go. {tools}"),
    ("thinking", "strip"), ("chat_template", "{{ messages }}"), ("tool_format", "hermes"),
    ("group_reward.mode", "only"), ("environments.A/B.reward_reduction", "max"), ("environments.A/B.max_turns", 3),
    ("environments.A/B.splits", ["other"]), ("rollout.turn_tokens", 6),
    ("rollout.context_tokens", 64), ("rollout.train_on.reasoning", False), ("trainer.temperature", 0.3),
    ("trainer.lr", 1e-4), ("trainer.seed", 7), ("trainer.n_samples", 8), ("trainer.rollout_batch_size", 9),
    ("trainer.advantage_estimator", "gspo"),
]  # fmt: skip
LISTED: list[tuple[str, Any]] = [
    ("environments.A/B.base_url", "http://127.0.0.1:2"), ("environments.A/B.success_reward", 0.1),
    ("environments.A/B.max_concurrency", 3), ("rollout.patience", 5.0), ("rollout.journal", "elsewhere"),
    ("eval.samples", 4), ("trainer.num_rollout", 9), ("trainer.wandb_project", "p"), ("trainer.local.engine", "local"),
    ("trainer.local.num_gpus", 4), ("trainer.flags.local.x", 2), ("trainer.max_tokens_per_gpu", 7),
]  # fmt: skip


def changed(key: str, value: Any, *, allow: str | None = None) -> RunConfig:
    """The configuration of BEFORE with another value at `key`."""
    tree = json.loads(json.dumps(BEFORE))
    place, *names = tree, *key.split(".")
    for name in names[:-1]:
        place = place.setdefault(name, {})
    place[names[-1]] = value
    tree["trainer"] |= {"load": "run/trainer/checkpoint-3", "allow_changes": allow}
    return decode_config(tree, "test")


def resumed(config: RunConfig) -> list[str]:
    return check_resume(config, config.trainer.load, DEFAULTS)


@pytest.fixture(autouse=True)
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run/trainer/checkpoint-3").mkdir(parents=True)
    Path("run/trainer/checkpoint-3/config.json").write_text('{"model_type": "qwen3"}', "utf-8")
    write_config(Path("run"), decode_config(BEFORE, "test"))


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_change_of_what_is_learned_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"`{key}"):
        resumed(changed(key, value))
    (line,) = resumed(changed(key, value, allow=f"x, {key.rpartition('.')[2]}"))
    assert line.startswith(f"{key}")


@pytest.mark.parametrize(("key", "value"), LISTED)
def test_other_change_is_listed(key: str, value: Any) -> None:
    (line,) = resumed(changed(key, value))
    assert line.startswith(f"{key} was ")


def test_environment_that_is_added_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environments\.C/D"):
        resumed(changed("environments.C/D", {}))


def test_default_that_is_written_out_is_no_change() -> None:
    assert resumed(changed("trainer.lr", 1e-5)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("trainer.flags", {}), ("trainer.local", {}), ("trainer.adam_eps", 1e-8), ("rollout.context_tokens", 32768),
     ("environments.A/B.version", "2"), ("environments.A/B.env_overrides", {})],
)  # fmt: skip
def test_same_meaning_is_not_refused(key: str, value: Any) -> None:
    resumed(changed(key, value))


def test_section_may_be_allowed() -> None:
    assert resumed(changed("environments.A/B.max_turns", 3, allow="environments.A/B"))
    with pytest.raises(ConfigError):
        resumed(changed("environments.A/B.max_turns", 3, allow="environments.C/D"))


def test_long_values_are_shortened() -> None:
    with pytest.raises(ConfigError) as refused:
        resumed(changed("system_prompt_template", "{tools}" + "look again " * 200))
    assert len(str(refused.value)) < 400


def test_checkpoint_without_a_run_is_not_compared() -> None:
    Path("bare").mkdir()
    assert len(check_resume(changed("reward", None), "bare", DEFAULTS)) == 1
    assert check_resume(changed("reward", None), None, DEFAULTS) == []


def test_run_of_another_version_is_not_compared() -> None:
    Path("run/config.json").write_text('{"trainer": {"gone": 1}, "environments": {"A/B": {}}}', "utf-8")
    assert len(resumed(changed("reward", None))) == 1
