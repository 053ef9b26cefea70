"""JSON schema of the configuration, with which editors complete and check keys. It refuses less than orl does."""

from __future__ import annotations

import json

import msgspec

from orl_core.config.schema import RunConfig


def editor_schema() -> str:
    """Return the schema as JSON text. Its patterns are JavaScript's, which has no `\\Z`."""
    made = msgspec.json.schema(RunConfig)
    for section in made["$defs"].values():
        section["description"] = " ".join(section["description"].split())
    return json.dumps(made, indent=2, ensure_ascii=False).replace(r"\\Z", "$") + "\n"
