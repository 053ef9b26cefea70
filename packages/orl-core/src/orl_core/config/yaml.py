"""Read YAML as plain JSON types, for `load_config`. This module knows nothing of the schema.

PyYAML is imported here alone, so that importing orl_core does not pay for it. The loader differs from PyYAML's safe one
in four points: a key that appears twice is an error, so is a number that YAML 1.1 reads in base 8 or 60 (`010` is 8,
`1:30` is 90), `1e-5` is a number (YAML 1.1 asks for a dot), and `on`, `off`, `yes`, `no` are text, as in YAML 1.2.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, cast

import yaml

from orl_core.errors import ConfigError
from orl_core.text import is_template

# Exceptions of PyYAML. The last five are for scalars that it cannot read and for nesting beyond Python's stack.
_REFUSALS = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=True)
        if len(mapping) != len(node.value):
            counts = Counter(str(key.value) for key, _ in node.value)
            twice = max(counts, key=lambda key: counts[key])
            raise yaml.constructor.ConstructorError(None, None, f"key `{twice}` appears twice", node.start_mark)
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        if _OTHER_BASE.match(node.value):
            text = "YAML reads a number with a leading 0 or a colon in base 8 or 60: write it in base 10, or in quotes"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
        return self.construct_yaml_float(node) if node.tag.endswith("float") else self.construct_yaml_int(node)


# The floats of YAML 1.2 that PyYAML reads as text: tag, pattern, first characters.
FLOATS = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(*FLOATS)  # pyright: ignore[reportUnknownMemberType]
_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [one for one in known if one[0] != _BOOL] for first, known in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    _BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_OTHER_BASE = re.compile("[-+]?0[0-9_]|.*:")
for _number in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_number}", _Loader.construct_number)


def read(path: Path) -> dict[str, Any]:
    """Return the mapping in the YAML file at `path`.

    Raises:
        ConfigError: no such file, not readable, not YAML, or not a mapping.
    """
    try:
        text = path.read_bytes().decode()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc
    tree = _parse(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping with `environments:` at the top - at `$`")
    return cast("dict[str, Any]", tree)


def override(tree: dict[str, Any], text: str) -> None:
    """Apply `dotted.path=value` (the value in YAML) to `tree`."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise ConfigError(f"override {f'`{path}`' if equals else 'without `=`'}: expected path.to.key=value")
    assign(tree, path, _parse(value, f"override `{path}`"))


def assign(tree: dict[str, Any], path: str, value: object) -> None:
    """Set the value at the dotted `path` of `tree`, making mappings on the way."""
    *parents, last = path.split(".")
    node = tree
    for depth, key in enumerate(parents):
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override `{path}`: `$.{'.'.join(parents[: depth + 1])}` is not a mapping")
        node = cast("dict[str, Any]", child)
    node[last] = value


def read_template(tree: dict[str, Any], source: str) -> None:
    """Put the text of the file that `chat_template` names in its place, so that it travels with the configuration."""
    named = tree.get("chat_template")
    if not isinstance(named, str) or is_template(named):
        return
    try:
        text = Path(named).read_bytes().decode()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{source}: {named} cannot be read: {exc} - at `$.chat_template`") from exc
    if not is_template(text):
        raise ConfigError(
            f"{source}: {named} is not a chat template: it contains neither {{{{ nor {{% - at `$.chat_template`"
        )
    tree["chat_template"] = text


def _parse(text: str, source: str) -> object:
    try:
        return cast("object", yaml.load(text, _Loader))  # noqa: S506 - a safe loader
    except _REFUSALS as exc:
        raise ConfigError(f"{source}: not YAML: {_why(exc)}") from None


_QUOTED = re.compile(r"""(['"]).*\1""", re.DOTALL)  # a word of the file, such as a password that begins with `*`


def _why(exc: Exception) -> str:
    """Return what is wrong and where. Words of the file may be secrets: none is in it."""
    if isinstance(exc, yaml.MarkedYAMLError):
        mark = exc.problem_mark or exc.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return f"{_QUOTED.sub('...', str(exc.problem or exc.context))[:1_000]}{where}"
    if isinstance(exc, yaml.YAMLError):
        return " ".join(str(exc)[:1_000].split())
    return (
        "nested too deep" if isinstance(exc, RecursionError) else f"a value in it cannot be read ({type(exc).__name__})"
    )
