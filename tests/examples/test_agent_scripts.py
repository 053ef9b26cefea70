"""The scripts of examples/agents put neither token nor address of the episode into files and command lines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
SCRIPTS = {"claude_code": "claude", "codex": "codex", "opencode": "opencode", "qwen_code": "qwen"}
TOKEN = "planted-token"
SHOWS = '#!/bin/sh\nprintf "%s\\n" "$@"\nfind . -type f -exec cat {} +\n'  # arguments, then all files


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_writes_no_token(script: str, tmp_path: Path) -> None:
    program, folder = tmp_path / "bin" / SCRIPTS[script], tmp_path / "folder"
    program.parent.mkdir()
    folder.mkdir()
    program.write_text(SHOWS)
    program.chmod(0o755)
    address = f"http://127.0.0.1:9/s/{TOKEN}"
    given = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        **{f"{api}_API_KEY": TOKEN for api in ("OPENAI", "ANTHROPIC")},
        **{"OPENAI_BASE_URL": f"{address}/v1", "ANTHROPIC_BASE_URL": address, "ORL_MCP_URL": f"{address}/mcp"},
        **{"ORL_PROMPT": "--play well", "ORL_MODEL": "orl"},
    }
    command = ["sh", str(EXAMPLES / f"{script}.sh")]
    shown = subprocess.run(command, env=given, cwd=folder, capture_output=True, check=True, text=True).stdout
    assert "--play well" in shown
    assert "orl" in shown.partition("--play well")[2]
    assert TOKEN not in shown


def test_each_agent_has_its_version() -> None:
    pins = json.loads((EXAMPLES / "package.json").read_text("utf-8"))["dependencies"]
    assert len(pins) == len(SCRIPTS) == len([*EXAMPLES.glob("*.sh")])
    assert all(version[0].isdigit() for version in pins.values())
