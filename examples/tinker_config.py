"""Translate the cookbook's tinker-config.yaml: `python examples/tinker_config.py tinker-config.yaml > my.yaml`.

Keys that orl has no word for are comments at the end of the new file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from orl_core import ConfigError, OrlError, boundary
from orl_core.config import decode_config

MOVED = {  # key: path in orl's file
    "secrets": "secrets",
    "system_prompt_template": "system_prompt_template",
    "thinking": "thinking",
    "openreward_run_name": "openreward_run_name",
    "wandb_project_name": "trainer.wandb_project",
    "wandb_run_name": "trainer.wandb_run",
    "model_name": "trainer.model",
    "resume_from": "trainer.load",
    "batch_size": "trainer.rollout_batch_size",
    "learning_rate": "trainer.lr",
    "weight_decay": "trainer.weight_decay",
    "save_every": "trainer.save_interval",
    "seed": "trainer.seed",
    "lora_rank": "trainer.tinker.lora_rank",
    "loss_fn": "trainer.tinker.loss_fn",
    "max_response_tokens": "rollout.turn_tokens",
    "max_total_tokens": "rollout.context_tokens",
    "rollout_timeout": "rollout.rollout_timeout",
}
KEPT = ("nonterminal_reward", "reward_reduction", "min_reward", "max_reward", "secrets")
DEFAULT = {"advantage_calculation": "centered_normalized", "num_epochs": None, "tokenizer_name": None, "loss_fn": "ppo"}


def translated(theirs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the tree of orl's configuration for the cookbook's, and the keys that it has no place for.

    Raises:
        ConfigError: environments differ in `num_rollouts` or `temperature`, which orl has once.
    """
    ours: dict[str, Any] = {"trainer": {"backend": "tinker", "tinker": dict(theirs.get("loss_fn_config") or {})}}
    left: list[str] = []
    for key, value in theirs.items():
        if key in MOVED and value is not None:
            _put(ours, MOVED[key], float(value) if key == "learning_rate" else value)  # YAML reads 1e-5 as a text
        elif key not in ("environments", "loss_fn_config", *MOVED) and value != DEFAULT.get(key, ...):
            left.append(key)
    environments: dict[str, dict[str, Any]] = theirs.get("environments") or {}
    for key, place in (("num_rollouts", "n_samples"), ("temperature", "temperature")):
        values = {one[key] for one in environments.values() if key in one}
        if len(values) > 1:
            raise ConfigError(f"`{key}` is {', '.join(map(str, sorted(values)))}, and orl has one for all. Choose one")
        for value in values:
            ours["trainer"][place] = value
    ours["environments"] = {name: _environment(name, one, left) for name, one in environments.items()}
    timeout = ours.get("rollout", {}).get("rollout_timeout")
    if timeout is not None:  # deadlines nest
        ours["rollout"] |= {"turn_timeout": min(600.0, timeout), "call_timeout": min(60.0, timeout)}
    return ours, left


def _environment(name: str, theirs: Mapping[str, Any], left: list[str]) -> dict[str, Any]:
    splits: dict[str, dict[str, Any]] = theirs.get("splits") or {}
    ours = {key: theirs[key] for key in KEPT if theirs.get(key) is not None}
    counts = {one["num_samples"] for one in splits.values() if one and one.get("num_samples") is not None}
    if len(counts) > 1:
        raise ConfigError(f"`{name}` draws {sorted(counts)} tasks of its splits, and orl the same of each. Choose one")
    ours |= {"splits": [*splits]} | ({"num_samples": counts.pop()} if counts else {})
    own = {"splits", "num_rollouts", "temperature", *KEPT}
    left += [f"environments.{name}.{key}" for key, value in theirs.items() if key not in own and value is not None]
    return ours


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[name] = value


def main(file: Path) -> str:
    """Return the text of orl's configuration for the cookbook's `file`.

    Raises:
        ConfigError: it cannot be read, or orl cannot do what it asks for.
    """
    with boundary(ConfigError, f"reading {file}"):
        ours, left = translated(yaml.safe_load(file.read_text(encoding="utf-8")))
    decode_config(ours, str(file))
    notes = "".join(f"# {key}: no place in orl; see docs/cookbook.md\n" for key in left)
    return yaml.safe_dump(ours, sort_keys=False) + notes


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("one file is needed: python examples/tinker_config.py tinker-config.yaml")
    try:
        print(main(Path(sys.argv[1])), end="")
    except OrlError as fault:
        sys.exit(str(fault))
