"""TRL obeys every option of the configuration. Flags that orl owns are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.errors import ConfigError
from orl_trl.run_plan.owned_flags import NAMES, OWNED
from orl_trl.run_plan.settings import grpo_config

from tests.trl.fakes import make_run

# Options with a field of GRPOConfig: a value, the field and what it has then.
FIELDS: dict[str, tuple[Any, str, Any]] = {
    "lr": (0.5, "learning_rate", 0.5),
    "lr_decay_style": ("cosine", "lr_scheduler_type", "cosine"),
    "weight_decay": (0.25, "weight_decay", 0.25),
    "adam_beta1": (0.5, "adam_beta1", 0.5),
    "adam_beta2": (0.5, "adam_beta2", 0.5),
    "adam_eps": (0.5, "adam_epsilon", 0.5),
    "advantage_estimator": ("gspo", "importance_sampling_level", "sequence"),
    "n_samples": (8, "num_generations", 8),
    "rollout_batch_size": (4, "generation_batch_size", 16),
    "num_rollout": (9, "max_steps", 18),
    "temperature": (0.5, "temperature", 0.5),
    "save_interval": (3, "save_steps", 6),
    "wandb_run": ("x", "run_name", "x"),
    "wandb_mode": ("offline", "report_to", ["wandb"]),
    "seed": (7, "seed", 7),
    "flags": ({"beta": 0.5}, "beta", 0.5),
    "optimizer": ("sgd", "optim", "sgd"),
}


@pytest.mark.parametrize("option", FIELDS)
def test_option_reaches_grpo_config(tmp_path: Path, option: str):
    value, field, expected = FIELDS[option]
    before = grpo_config(make_run(tmp_path, "m"), parameters=1)
    after = grpo_config(make_run(tmp_path, "m", **{option: value}), parameters=1)
    assert getattr(after, field) == expected
    assert getattr(before, field) != expected


@pytest.mark.parametrize("name", sorted(OWNED.keys() & NAMES))
def test_flag_that_orl_owns_is_refused(tmp_path: Path, name: str):
    run = structs.replace(make_run(tmp_path, "m"), extra=(f"--{name}=1",))
    with pytest.raises(ConfigError) as refusal:
        grpo_config(run, parameters=1)
    assert name in str(refusal.value)
