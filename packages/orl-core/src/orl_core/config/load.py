"""Load a RunConfig: read YAML, apply overrides, check everything. One error names the file and every mistake in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

import msgspec

from orl_core.config.schema import RunConfig
from orl_core.config.trainer import placed
from orl_core.errors import ConfigError
from orl_core.text import non_finite

if TYPE_CHECKING:
    from pathlib import Path

# The keys of a file of the OpenReward cookbook, and of an environment in it.
_KEYS = {"environments", "secrets", "system_prompt_template", "thinking", "openreward_run_name"}
_ENVIRONMENT_KEYS = {
    *("splits", "num_samples", "nonterminal_reward", "reward_reduction"),
    *("min_reward", "max_reward", "max_turns", "secrets"),
}


class BrokenConfigError(ConfigError):
    """A configuration breaks the schema: `mistakes` says how, one line each."""

    def __init__(self, source: str, mistakes: Sequence[str]) -> None:
        from orl_core.config.mistakes import listed

        super().__init__(f"{source}: {listed(mistakes)}")
        self.mistakes = tuple(mistakes)


def load_config(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    tree: Mapping[str, object] | None = None,
) -> RunConfig:
    """Read, override and check the configuration at `path`, or the `tree` if there is no file.

    `settings` are values of plain JSON types by dotted path: {"trainer.lr": 1e-5}. `overrides` beat them. An override
    is `dotted.path=value` with the value in YAML: `environments.Org/Env.max_turns=3`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks the schema; names the file, or the command line
            if `settings` or `overrides` are wrong, and each `$.path`.
    """
    from pathlib import Path

    from orl_core.config import yaml

    source = "command line" if path is None else str(path)
    in_file = dict(tree or {}) if path is None else yaml.read(Path(path))
    if in_file.get("thinking") is True and _is_cookbook(in_file):  # there it also means that reasoning does not train
        in_file["rollout"] = {"train_on": {"reasoning": False}}
    tree, settings = deepcopy(in_file), settings or {}
    for setting, value in settings.items():
        yaml.assign(tree, setting, value)
    for override in overrides:
        yaml.override(tree, override)
    yaml.read_template(tree, source)
    try:
        return decode_config(tree, source)
    except BrokenConfigError as error:
        from orl_core.config.mistakes import find_mistakes

        known = find_mistakes(placed(in_file), RunConfig) if settings or overrides else error.mistakes
        new = [mistake for mistake in error.mistakes if mistake not in known]
        raise BrokenConfigError("command line", new) if new else error from None


def _is_cookbook(tree: dict[str, Any]) -> bool:
    """Return whether a file has no key that the cookbook does not have."""
    environments = tree.get("environments")
    if not tree.keys() <= _KEYS or not isinstance(environments, dict):
        return False
    settings = cast("dict[str, Any]", environments).values()
    return all(isinstance(each, dict) and each.keys() <= _ENVIRONMENT_KEYS for each in settings)


def decode_config(tree: object, source: str) -> RunConfig:
    """Build a RunConfig from plain JSON types (a YAML tree, or the `orl_config` that travels into a trainer).

    Raises:
        ConfigError: the tree breaks the schema; the message opens with `source` and names each mistake.
    """
    tree = placed(tree)
    try:
        config = msgspec.convert(tree, RunConfig)
    except (msgspec.ValidationError, UnicodeError):  # the latter: half of a surrogate pair
        config = None
    if config is None or non_finite(tree, "$"):
        from orl_core.config import retrain
        from orl_core.config.mistakes import find_mistakes

        if keys := retrain.lines_for(tree):
            raise ConfigError(f"{source}: this is a configuration of retrain. In orl, its keys are: {'; '.join(keys)}")
        raise BrokenConfigError(source, find_mistakes(tree, RunConfig))
    return config
