"""JSON schema of the configuration, with which editors complete and check keys. It refuses less than orl does."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from orl_core.config.schema import RunConfig


def editor_schema() -> str:
    """Return the schema as JSON text. Its patterns are JavaScript's, which has no `\\Z`."""
    made = msgspec.json.schema(RunConfig)
    for section in made["$defs"].values():
        section["description"] = " ".join(section["description"].split())
    return json.dumps(_with_ends(made), indent=2, ensure_ascii=False) + "\n"


def _with_ends(node: object) -> Any:
    """Return `node` with `$` for the `\\Z` of its patterns."""
    if isinstance(node, list):
        return [_with_ends(member) for member in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    return {
        key: value.replace(r"\Z", "$") if key == "pattern" and isinstance(value, str) else _with_ends(value)
        for key, value in cast("dict[str, object]", node).items()
    }
