"""Load a RunConfig: read YAML, apply overrides, check everything, name file and path of an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from orl_core.config.schema import EnvironmentConfig, RunConfig
from orl_core.errors import ConfigError
from orl_core.nesting import MAX_DEPTH, non_finite, too_deep

if TYPE_CHECKING:
    from pathlib import Path


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read, override and check the configuration at `path`.

    An override is `dotted.path=value` with the value in YAML: `environments.Org/Env.max_turns=3`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks the schema; names the file and the `$.path`.
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
        ConfigError: the tree breaks the schema; the message opens with `source`.
    """
    if too_deep(tree):
        raise ConfigError(f"{source}: nested deeper than {MAX_DEPTH} levels - at `$`")
    if where := non_finite(tree, "$"):
        raise ConfigError(f"{source}: numbers must be finite and within 64 bits - at `{where}`")
    try:
        return msgspec.convert(tree, RunConfig)
    except msgspec.ValidationError as exc:
        message = str(exc) if "`$" in str(exc) else f"{exc} - at `$`"
        if _UNNAMED in message:
            message = message.replace(_UNNAMED, _broken_environment(tree))
        raise ConfigError(f"{source}: {message}") from exc


_UNNAMED = "$.environments[...]"  # how msgspec writes the path into a mapping


def _broken_environment(tree: object) -> str:
    """The path of the first environment in `tree` that does not decode; msgspec's own path leaves its name out."""
    environments = cast("dict[str, dict[str, object]]", tree)["environments"]
    for name, environment in environments.items():
        try:
            msgspec.convert(environment, EnvironmentConfig)
        except msgspec.ValidationError:
            return f"$.environments.{name}"
    return "$.environments"
