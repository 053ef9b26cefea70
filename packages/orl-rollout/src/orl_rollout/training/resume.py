"""Resume: what a run shares with the one whose checkpoint it continues.

Both configurations are compared with their defaults filled in. What the policy learns from must not change without a
word: rewards, prompts, budgets, sampling, estimator and optimizer. The rest is listed. Trainers judge their own
sections, their flags and the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import structs
from orl_core.config import RunConfig, decode_config
from orl_core.config.limits import context_tokens_of
from orl_core.errors import ConfigError

from orl_rollout.run_folder.config_file import read_object

# Keys of these may differ: addresses, paths, limits of this machine, tracking, the number of steps, and evaluation.
FREE = {
    "": "secrets chat_template_date eval",
    "environments": "secrets base_url send_api_key version max_concurrency call_timeout replay eval_splits "
    "success_reward",
    "rollout": "patience max_error_rate reward_timeout reward_concurrency journal upload call_timeout turn_timeout "
    "rollout_timeout",
    "group_reward": "timeout",
    "trainer": "backend num_rollout max_tokens_per_gpu save_interval task_data wandb_project wandb_run wandb_mode "
    "max_logprob_difference tensorboard",
}
OWN = {("openreward_run_name",), *(("trainer", name) for name in ("load", "model", "allow_changes"))}  # of each run
MOST = 60  # characters of a value that a line shows


def check_resume(
    config: RunConfig, load: str | Path | None, defaults: Mapping[str, Any], fixed: Collection[str] = ()
) -> list[str]:
    """Return a line for each key that differs from the run whose folder or checkpoint `load` names.

    `defaults` are those of the trainer. Keys with a part that is `fixed` may not differ, whichever they are.

    Raises:
        ConfigError: the new run would do something else, and `trainer.allow_changes` does not name the key.
    """
    if load is None or not (folder := Path(load).expanduser()).exists():
        return []
    try:
        before = _run_of(folder)
    except ConfigError:
        return [f"--load {load}: the configuration of its run is of another version of orl, and is not compared"]
    if before is None:
        return [f"{load} belongs to no run of orl: no configuration is compared"]
    then, now = (_leaves(one, defaults) for one in (before, config))
    changed = [key for key in {**then, **now} if (fixed or key not in OWN) and then.get(key) != now.get(key)]
    shown = {key: (_shown(then.get(key)), _shown(now.get(key))) for key in changed}
    refused = [
        key for key in changed if {*key} & {*fixed} or (not _is_free(key, then, now) and not is_allowed(config, *key))
    ]
    if refused:
        names = ",".join(map(".".join, refused))
        differ = "; ".join(f"`{'.'.join(key)}` {shown[key][0]}, and this one {shown[key][1]}" for key in refused)
        raise ConfigError(
            f"{load}: its run has {differ}. Set it as it was{'' if fixed else f', or give --allow-changes {names}'}"
        )
    return [f"{'.'.join(key)} was {old}, and is {new} now" for key, (old, new) in shown.items()]


def is_allowed(config: RunConfig, *key: str) -> bool:
    """Return whether `trainer.allow_changes` names `key`, a section that holds it, or its last part."""
    named = {name.strip() for name in (config.trainer.allow_changes or "").split(",")}
    return bool(named & {key[-1], *(".".join(key[: place + 1]) for place in range(len(key)))})


def _run_of(folder: Path) -> RunConfig | None:
    """Return the configuration of the run that the checkpoint in `folder` belongs to; None if it belongs to none."""
    for place in (folder, folder.parent, folder.parent.parent):
        if "environments" in (tree := read_object(place / "config.json")):
            return decode_config(tree, "config.json")
    return None


def _leaves(config: RunConfig, defaults: Mapping[str, Any]) -> dict[tuple[str, ...], object]:
    resolved = structs.replace(
        config,
        trainer=config.trainer.with_defaults(defaults),
        rollout=structs.replace(config.rollout, context_tokens=context_tokens_of(config)),
        agent=config.agent_config,
    )
    return dict(_walk(resolved.public()))


def _walk(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _walk(cast("dict[str, Any]", value), (*path, name))
        elif value is not None:
            yield (*path, name), value


def _is_free(key: tuple[str, ...], *sides: Mapping[tuple[str, ...], object]) -> bool:
    """Tell whether a key may differ. A default of a trainer may not be known here: the trainer compares it."""
    section = key[0] if len(key) > 1 and key[0] in FREE else ""
    if section == "trainer" and (len(key) > 2 or not all(key in side for side in sides)):
        return True
    names = key[2:3] if section == "environments" else key[1:2] if section else key[:1]
    return bool({*names} & {*FREE[section].split()})


def _shown(value: object) -> str:
    text = "not set" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST else f"{text[:MOST]}..."
