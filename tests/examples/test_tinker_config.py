"""The cookbook's own tinker-config.yaml becomes a file that `orl train tinker` plans."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from orl_core.config import load_config
from orl_core.errors import ConfigError
from orl_tinker.options import check_options, own_options

ROOT = Path(__file__).parents[2]
_place = spec_from_file_location("tinker_config", ROOT / "examples" / "tinker_config.py")  # slime has `examples` too
assert _place is not None
_example = module_from_spec(_place)
assert _place.loader is not None
_place.loader.exec_module(_example)
main, translated = _example.main, _example.translated

FILE = ROOT / "tests" / "golden" / "tinker" / "tinker-config.yaml"


def test_file_of_the_cookbook_is_translated(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tinker_config.py"), str(FILE)],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = tmp_path / "my.yaml"
    ours.write_text(done.stdout, "utf-8")
    config = load_config(ours)
    check_options(config, ())
    trainer, own = config.trainer, own_options(config.trainer)
    assert (trainer.backend, trainer.model, trainer.lr) == ("tinker", "Qwen/Qwen3-30B-A3B", 1e-5)
    assert (trainer.rollout_batch_size, trainer.n_samples, trainer.save_interval) == (32, 16, 10)
    assert (own.lora_rank, own.loss_fn, own.loss_config["clip_high_threshold"]) == (8, "ppo", 1.2)
    environment = config.environments["GeneralReasoning/WhoDunit"]
    assert (environment.splits, environment.reward_reduction, environment.nonterminal_reward) == (
        ("train",),
        "sum",
        0.0,
    )
    assert config.rollout.turn_tokens == 4096
    assert "max_failing_rollouts" in done.stdout


def test_settings_that_orl_has_once_are_refused_if_they_differ():
    one = {"splits": {"train": {}}, "num_rollouts": 4}
    with pytest.raises(ConfigError, match="num_rollouts"):
        translated({"environments": {"A/B": one, "C/D": {**one, "num_rollouts": 8}}})


def test_file_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="reading"):
        main(tmp_path / "missing.yaml")
