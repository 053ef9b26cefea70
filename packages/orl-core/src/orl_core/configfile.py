"""YAML in, plain JSON types out: the file's side of `load_config`. It knows nothing of the schema.

PyYAML is imported here alone, so that importing orl_core does not pay for it. The loader differs from PyYAML's safe one
in two points: a key that stands twice is an error, and `1e-5` is a number (YAML 1.1 asks for a dot).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import yaml

from orl_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


# What PyYAML raises, the last four for scalars that it cannot make and for nesting beyond Python's stack.
_REFUSALS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=True)
        if len(mapping) != len(node.value):
            keys = [key.value for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"key `{twice}` stands twice", node.start_mark)
        return mapping


_Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read(path: Path) -> dict[str, Any]:
    """The mapping in the YAML file at `path`.

    Raises:
        ConfigError: no such file, not readable, not YAML, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc
    tree = _parse(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping with `environments:` at the top - at `$`")
    return cast("dict[str, Any]", tree)


def override(tree: dict[str, Any], text: str) -> None:
    """Apply `dotted.path=value` (the value in YAML) to `tree`, making mappings on the way.

    Raises:
        ConfigError: no `=`, a value that is not YAML, or a path through something that is not a mapping.
    """
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise ConfigError(f"override `{text}` is not of the form path.to.key=value")
    *parents, last = path.split(".")
    node = tree
    for depth, key in enumerate(parents):
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override `{text}`: `$.{'.'.join(parents[: depth + 1])}` is not a mapping")
        node = cast("dict[str, Any]", child)
    node[last] = _parse(value, f"override `{text}`")


def _parse(text: str, source: str) -> object:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except _REFUSALS as exc:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(exc).split())}") from exc
