"""The wheels on their own: each is installed with its own requirements only, imports all its modules and is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("orl-core", "orl-rollout", "orl-cluster", "orl-gateway", "orl-testing")
KEPT_OUT = {"asyncio", "aiohttp", "openreward", "transformers", "torch", "wandb", "yaml"}  # of what orl-core loads

pytestmark = pytest.mark.slow

PROBE = """
import importlib, importlib.resources, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
modules = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in (name for name in modules if not name.endswith("__main__")):
    importlib.import_module(name)
typed = importlib.resources.files(package).joinpath("py.typed").is_file()
print(json.dumps({"typed": typed, "modules": len(modules)}))
"""
LIGHT = """
import json, sys
import orl_core.config, orl_core.datum, orl_core.render, orl_core.reward, orl_core.tools
print(json.dumps(list(sys.modules)))
"""


def output(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        output("uv", "build", "-q", "--wheel", "--package", package, "--out-dir", folder)
    return folder


def installed(package: str, wheels: Path, folder: Path) -> Path:
    """Return the interpreter of a fresh environment that holds the wheel of `package` and what it requires."""
    output("uv", "venv", "-q", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (wheel,) = wheels.glob(f"{package.replace('-', '_')}-*.whl")
    output("uv", "pip", "install", "-q", "--python", python, "--find-links", wheels, wheel)
    return python


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_imports_alone_and_is_typed(package: str, wheels: Path, tmp_path: Path) -> None:
    python = installed(package, wheels, tmp_path)
    name = package.replace("-", "_")
    found = json.loads(output(python, "-I", "-W", "error", "-c", PROBE, name))
    sources = ROOT / "packages" / package / "src" / name
    assert found["typed"]
    assert found["modules"] == len([*sources.rglob("*.py")]) - 1  # without the package itself


def test_core_brings_two_packages_and_loads_light(wheels: Path, tmp_path: Path) -> None:  # shows A33
    python = installed("orl-core", wheels, tmp_path)
    listed = json.loads(output("uv", "pip", "list", "-q", "--format", "json", "--python", python))
    assert {one["name"].lower() for one in listed} == {"orl-core", "msgspec", "pyyaml"}
    assert not KEPT_OUT & {*json.loads(output(python, "-c", LIGHT))}
