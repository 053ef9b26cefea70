"""The schema describes every key; documentation and editors' schema are made of it and mean what is decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from orl_core.config import RunConfig, decode_config, yaml
from orl_core.config.fields import description_of, values_of
from orl_core.config.schema import editor_schema
from orl_core.errors import ConfigError
from orl_launcher import trainers

from tests.config_reference import FILES, ROOT, SECTIONS

VALIDATOR = jsonschema_rs.Draft202012Validator(json.loads(editor_schema(trainers.sections())))


def sections_of(kind: msgspec.inspect.Type) -> set[type[msgspec.Struct]]:
    """Return every Struct inside `kind`."""
    if isinstance(kind, msgspec.inspect.StructType):
        return {kind.cls}.union(*(sections_of(field.type) for field in kind.fields))
    inner = [getattr(kind, "type", None), getattr(kind, "value_type", None), *getattr(kind, "types", ())]
    return set[type[msgspec.Struct]]().union(*(sections_of(each) for each in inner if each is not None))


FOUND = sections_of(msgspec.inspect.type_info(RunConfig))


def test_every_section_is_documented() -> None:
    assert set(SECTIONS.values()) >= FOUND
    assert len(FOUND) >= 8


@pytest.mark.parametrize("section", SECTIONS.values(), ids=lambda section: section.__name__)
def test_every_field_has_a_description(section: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(section):
        description = description_of(field.type)
        assert description.endswith("."), field.name
        assert values_of(field.type) != "any value", field.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_generated_file_is_up_to_date(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == FILES[file](), "run `just docs-config`"


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.name)
def test_editors_schema_accepts_our_files(file: Path) -> None:
    VALIDATOR.validate(yaml.read(file))


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"environments": {"Org/..": {}}},
        {"environments": {"A/B": {"max_turn": 1}}},
        {"environments": {"A/B": {"max_turns": 0}}},
        {"environments": {"A/B": {"base_url": "https://me@host"}}},
        {"environments": {"A/B": {"base_url": ["https://host", "https://me@host"]}}},
        {"environments": {"A/B": {"base_url": []}}},
        {"environments": {"A/B": {}}, "reward": "a.b:c.d\n"},
        {"environments": {"A/B": {}}, "trainer": {"lr": "fast"}},
        {"environments": {"A/B": {}}, "secrets": {"a": ["b"]}},
    ],
    ids=json.dumps,
)
def test_editors_schema_refuses_what_decoding_refuses(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        decode_config(tree, "tree")
    if "\n" not in str(tree.get("reward")):  # Python's `$` also matches before a line break, JavaScript's does not
        assert not VALIDATOR.is_valid(tree)
