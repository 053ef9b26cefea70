"""orl-core on its own: what it brings, what it imports, and that it is typed, in an empty environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT_OUT = {"asyncio", "aiohttp", "openreward", "transformers", "torch", "wandb", "yaml"}


def output(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel of orl-core and what it asks for."""
    folder = tmp_path_factory.mktemp("alone")
    output("uv", "build", "-q", "--wheel", "--package", "orl-core", "--out-dir", folder)
    output("uv", "venv", "-q", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("orl_core-*.whl")
    output("uv", "pip", "install", "-q", "--python", python, wheel)
    return python


def test_it_brings_msgspec_and_pyyaml_only(python: Path):
    listed = json.loads(output("uv", "pip", "list", "-q", "--format", "json", "--python", python))
    assert {package["name"].lower() for package in listed} == {"orl-core", "msgspec", "pyyaml"}


PROBE = """
import sys, orl_core.config, orl_core.datum, orl_core.render, orl_core.reward, orl_core.tools
loaded = list(sys.modules)
import importlib.resources, json
print(json.dumps([loaded, importlib.resources.files("orl_core").joinpath("py.typed").is_file()]))
"""


def test_it_is_typed_and_light(python: Path):
    loaded, typed = json.loads(output(python, "-c", PROBE))
    assert typed
    assert not KEPT_OUT & set(loaded)
