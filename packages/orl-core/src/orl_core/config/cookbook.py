"""Recognise a file of the OpenReward cookbook, where `thinking: true` also means that reasoning does not train."""

from __future__ import annotations

from typing import Any, cast

_KEYS = {"environments", "secrets", "system_prompt_template", "thinking", "openreward_run_name"}
_ENVIRONMENT_KEYS = {
    *("splits", "num_samples", "nonterminal_reward", "reward_reduction"),
    *("min_reward", "max_reward", "max_turns", "secrets"),
}


def mask_reasoning(tree: dict[str, Any]) -> None:
    """Set `rollout.train_on.reasoning` to false in the file `tree`, if it is the cookbook's and has `thinking: true`.

    A file is the cookbook's if it has no key that the cookbook does not have. Its word for `keep` is `true`.
    """
    if tree.get("thinking") is True and _is_cookbook(tree):
        tree["rollout"] = {"train_on": {"reasoning": False}}


def _is_cookbook(tree: dict[str, Any]) -> bool:
    environments = tree.get("environments")
    if not tree.keys() <= _KEYS or not isinstance(environments, dict):
        return False
    settings = cast("dict[str, Any]", environments).values()
    return all(isinstance(each, dict) and each.keys() <= _ENVIRONMENT_KEYS for each in settings)
