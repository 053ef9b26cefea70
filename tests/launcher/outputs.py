"""What a command prints with `--json`, held against the schema in docs/."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from orl_launcher.main import main

from tests.config_reference import ROOT

SCHEMA = json.loads((ROOT / "docs" / "output.schema.json").read_text(encoding="utf-8"))


def printed(capsys: pytest.CaptureFixture[str], command: str, *argv: str, code: int = 0) -> Any:
    """Run the command, expect `code`, return what it prints."""
    capsys.readouterr()
    assert main([command, *argv, "--json"]) == code
    tree = json.loads(capsys.readouterr().out)
    reference = {**SCHEMA["properties"][command], "$defs": SCHEMA["$defs"]}
    jsonschema_rs.validate(reference, tree)
    return tree
