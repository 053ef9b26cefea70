"""Load a RunConfig: read YAML, apply overrides, check everything. One error names the file and every mistake in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from orl_core.config.schema import RunConfig
from orl_core.errors import ConfigError
from orl_core.nesting import MAX_DEPTH, non_finite, too_deep

if TYPE_CHECKING:
    from pathlib import Path


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read, override and check the configuration at `path`.

    An override is `dotted.path=value` with the value in YAML: `environments.Org/Env.max_turns=3`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks the schema; names the file and each `$.path`.
    """
    from pathlib import Path

    from orl_core.config import yaml

    tree = yaml.read(Path(path))
    for override in overrides:
        yaml.override(tree, override)
    yaml.read_template(tree, str(path))
    return decode_config(tree, str(path))


def decode_config(tree: object, source: str) -> RunConfig:
    """Build a RunConfig from plain JSON types (a YAML tree, or the `orl_config` that travels into a trainer).

    Raises:
        ConfigError: the tree breaks the schema; the message opens with `source` and names each mistake.
    """
    if too_deep(tree):
        raise ConfigError(f"{source}: nested deeper than {MAX_DEPTH} levels - at `$`")
    try:
        config = msgspec.convert(tree, RunConfig)
    except (msgspec.ValidationError, UnicodeError):  # the latter: half of a surrogate pair
        config = None
    if config is None or non_finite(tree, "$"):
        from orl_core.config.mistakes import mistakes_in

        raise ConfigError(f"{source}: {mistakes_in(tree)}")
    return config
