"""JSON schema of the configuration, with which editors complete and check keys. It refuses less than orl does."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from orl_core.config.schema import RunConfig


def editor_schema(sections: Mapping[str, type[Struct]]) -> str:
    """Return the schema as JSON text, with the `sections` of adapters in `trainer`.

    Its patterns are JavaScript's, which has no `\\Z`.
    """
    kinds = {"": RunConfig, **sections}
    references, components = msgspec.json.schema_components(kinds.values(), ref_template="#/$defs/{name}")
    refer = dict(zip(kinds, references, strict=True))
    trainer = components["TrainerConfig"]
    del trainer["properties"]["sections"]
    trainer["properties"] |= {name: refer[name] for name in sections}
    trainer["additionalProperties"] = {"type": "object"}  # a section of another adapter
    for section in components.values():
        section["description"] = " ".join(section["description"].split())
    return json.dumps({**refer[""], "$defs": components}, indent=2, ensure_ascii=False).replace(r"\\Z", "$") + "\n"
