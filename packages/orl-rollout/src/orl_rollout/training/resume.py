"""Resume: what a run shares with the one whose checkpoint it continues.

Both configurations are compared with their defaults filled in. What the policy learns from must not change without a
word: rewards, prompts, budgets, sampling, estimator and optimizer. The rest is listed. Trainers judge their own
sections, their flags and the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import structs
from orl_core.config import RunConfig, TrainerConfig, decode_config
from orl_core.errors import ConfigError
from orl_core.task import Task

from orl_rollout.run_folder.config_file import read_object

# Keys that may differ: addresses, paths, limits of this machine, tracking, the number of steps, and evaluation.
FREE = (
    "secrets.* chat_template_date eval.* group_reward.timeout "
    "environments.*.secrets.* environments.*.base_url environments.*.send_api_key environments.*.version "
    "environments.*.max_concurrency environments.*.call_timeout environments.*.replay environments.*.eval_splits "
    "environments.*.success_reward rollout.patience rollout.max_error_rate rollout.*_timeout rollout.journal "
    "rollout.reward_concurrency rollout.upload rollout.workers trainer.backend trainer.num_rollout "
    "trainer.max_tokens_per_gpu trainer.save_interval trainer.task_data trainer.wandb_* "
    "trainer.max_logprob_difference trainer.tensorboard "
    "trainer.*.*"
)
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


def order_of(trainer: TrainerConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the settings that fix what each step plays. `trainer` has no default left.

    `tasks` is a digest of their keys; "" is not known.
    """
    keys = "\n".join(task.key for task in tasks)
    return {
        "seed": trainer.seed,
        "rollout_batch_size": trainer.rollout_batch_size,
        "n_samples": trainer.n_samples,
        "tasks": sha256(keys.encode()).hexdigest() if tasks else "",
    }


def check_order(
    config: RunConfig, before: Mapping[str, Any], order: Mapping[str, Any], step: int, fixed: Collection[str] = ()
) -> None:
    """Refuse to continue a checkpoint of `step` steps and the settings `before` with other ones.

    `trainer.allow_changes` may name a setting that is not `fixed`.

    Raises:
        ConfigError: a setting differs, or no step is left.
    """
    load, trainer = config.trainer.load, config.trainer
    for name, now in order.items():
        if now in ("", then := before.get(name, now)):
            continue
        own = is_allowed(config, "trainer", trainer.backend or "", name) or is_allowed(config, "trainer", name)
        if own and name not in fixed:
            continue
        if name == "tasks":
            raise ConfigError(f"--load {load}: tasks.jsonl has changed since its run began. Give it the same tasks")
        advice = "" if name in fixed else f", or give --allow-changes {name}"
        raise ConfigError(f"--load {load}: its run has `{name}` {then}, and this one {now}. Set it as it was{advice}")
    if trainer.num_rollout is not None and step >= trainer.num_rollout:
        raise ConfigError(f"--load {load}: it has {step} steps already. Set --num-rollout to more than {step}")


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
        rollout=structs.replace(config.rollout, context_tokens=config.context_tokens),
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
    known = key[0] != "trainer" or all(key in side for side in sides)
    return not known or any(fnmatchcase(".".join(key), pattern) for pattern in FREE.split())


def _shown(value: object) -> str:
    text = "not set" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST else f"{text[:MOST]}..."
