"""Resume: what a run shares with the one whose checkpoint it continues.

Both configurations are compared with their defaults filled in. What the policy learns from must not change without a
word: rewards, prompts, budgets, sampling, tasks, estimator and optimizer. The rest is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import structs
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError

from orl_rollout.run_folder.config_file import read_object

# Keys of these may differ: addresses, paths, limits of this machine, tracking, the number of steps, and evaluation.
FREE = {
    "": "secrets chat_template_date eval",
    "environments": "secrets base_url send_api_key max_concurrency call_timeout replay eval_splits success_reward",
    "rollout": "patience max_error_rate reward_timeout reward_concurrency journal upload call_timeout turn_timeout "
    "rollout_timeout",
    "group_reward": "timeout",
    "trainer": "backend num_rollout max_tokens_per_gpu save_interval task_data wandb_project "
    "wandb_run wandb_mode max_logprob_difference tensorboard",
}
OWN = {("openreward_run_name",), *(("trainer", name) for name in ("load", "model", "allow_changes"))}  # of each run
_ABSENT = "not set"


def check_resume(config: RunConfig, defaults: Mapping[str, Any]) -> list[str]:
    """Return a line for each key that differs from the run whose checkpoint `config` continues.

    `defaults` are those of the trainer. There is nothing to compare if the checkpoint belongs to no run of orl.

    Raises:
        ConfigError: the new run would learn something else, and `trainer.allow_changes` does not name the key.
    """
    load = config.trainer.load
    before = load and _run_of(Path(load).expanduser())
    if not before:
        return []
    try:
        first = decode_config(before, "config.json")
    except ConfigError:
        return [f"--load {load}: the configuration of its run is of another version of orl, and is not compared"]
    then, now = (_leaves(one, defaults) for one in (first, config))
    changed = [key for key in {**then, **now} if key not in OWN and then.get(key, _ABSENT) != now.get(key, _ABSENT)]
    allowed = {name.strip() for name in (config.trainer.allow_changes or "").split(",")}
    refused = [key for key in changed if not _is_free(key) and not allowed & {".".join(key), key[-1]}]
    if refused:
        differ = [
            f"`{'.'.join(key)}` {then.get(key, _ABSENT)}, and this one {now.get(key, _ABSENT)}" for key in refused
        ]
        names = ",".join(map(".".join, refused))
        raise ConfigError(
            f"--load {load}: its run has {'; '.join(differ)}. Set it as it was, or give --allow-changes {names}"
        )
    return [f"{'.'.join(key)} was {then.get(key, _ABSENT)}, and is {now.get(key, _ABSENT)} now" for key in changed]


def _run_of(folder: Path) -> dict[str, Any]:
    """Return the configuration of the run that the checkpoint in `folder` belongs to; {} if it belongs to none."""
    for place in (folder, folder.parent, folder.parent.parent):
        if "trainer" in (tree := read_object(place / "config.json")):
            return tree
    return {}


def _leaves(config: RunConfig, defaults: Mapping[str, Any]) -> dict[tuple[str, ...], object]:
    return dict(_walk(structs.replace(config, trainer=config.trainer.with_defaults(defaults)).public()))


def _walk(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _walk(cast("dict[str, Any]", value), (*path, name))
        elif value is not None:
            yield (*path, name), value


def _is_free(key: tuple[str, ...]) -> bool:
    """Tell whether a key may differ. A trainer judges its own section."""
    section = key[0] if len(key) > 1 and key[0] in FREE else ""
    if section == "trainer" and len(key) > 2:
        return True
    names = key[2:3] if section == "environments" else key[1:2] if section else key[:1]
    return bool({*names} & {*FREE[section].split()})
