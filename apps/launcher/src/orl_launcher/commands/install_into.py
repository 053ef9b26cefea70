"""`orl install-into PYTHON`: install orl and one adapter into a trainer's environment, and change nothing else there.

The installed versions become constraints: if orl cannot work with them, nothing is installed. orl's own packages are
those of this command: built from their checkout, or packed again from the installed files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Sequence
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from orl_core.errors import ConfigError, boundary
from orl_rollout.edge import children

from orl_launcher import cli, trainers

DESCRIPTION = """\
Install the adapter of a trainer, and the packages of orl that it needs, into the environment of the trainer.
No package that is installed there changes its version.
"""
EXAMPLES = """\
  orl install-into ~/slime/.venv/bin/python            the adapter of slime
  orl install-into ~/miles/.venv/bin/python --trainer miles
"""
UV_SECONDS = 3600.0  # it may download
INSTALLERS_OWN = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"}


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl install-into`."""
    options.add_argument("python", help="the Python of the trainer's environment")
    options.add_argument(
        "--trainer", type=trainers.known, help="trainer whose adapter to install (default: the one that PYTHON has)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Install with the versions that are there as constraints, and print what was installed."""
    named: str = arguments.python
    python = str(Path(shutil.which(named) or named).absolute())  # uv looks a name up differently
    if Path(python).parent == Path(sys.executable).parent:
        raise cli.UsageError(f"{python} belongs to orl itself. Give the Python of the trainer by its path")
    before = installed(python)
    packages = _packages(arguments.trainer, before)
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        kept = {name: at for name, at in before.items() if not name.lower().startswith("orl-")}
        constraints.write_text("".join(f"{name}=={at}\n" for name, at in sorted(kept.items())), encoding="utf-8")
        again = [word for name in packages for word in ("--reinstall-package", name)]
        wheels = [str(_wheel_of(name, Path(folder) / name)) for name in packages]
        _uv("pip", "install", "--python", python, "--constraint", str(constraints), *again, *wheels)
    new = ", ".join(f"{name} {at}" for name, at in sorted(installed(python).items()) if name not in kept)
    cli.console().print(f"{python} has {new}; no other version changed")
    return 0


def _packages(named: str | None, before: Collection[str]) -> Sequence[str]:
    """Return the packages to install for the trainer that is `named`, else for the one that is among those `before`."""
    places = {name: packages for name in trainers.installed() if (packages := trainers.find_trainer(name).packages)}
    there = [named] if named else [name for name in places if name in before]
    if len(there) != 1 or there[0] not in places:
        which = (
            f"{named} runs in orl's own environment" if named else f"PYTHON has {' and '.join(there) or 'no trainer'}"
        )
        raise cli.UsageError(f"{which}. Give --trainer one of {', '.join(places)}")
    return places[there[0]]


def installed(python: str) -> dict[str, str]:
    """Return the versions of the packages in an environment, by name."""
    return {each["name"]: each["version"] for each in json.loads(_uv("pip", "list", "--format=json", "-p", python))}


def _wheel_of(package: str, folder: Path) -> Path:
    """Return the wheel of a package, written to a new folder."""
    folder.mkdir()
    if (source := cli.source_of(package)) is None:
        return write_wheel(package, folder)
    _uv("build", "--quiet", "--wheel", "--out-dir", str(folder), str(source))
    return next(folder.glob("*.whl"))


def _uv(*arguments: str) -> str:
    with boundary(ConfigError, f"running uv {arguments[0]} (pip install uv brings it)"):
        process = children.run(["uv", *arguments], timeout=UV_SECONDS)
        if process.returncode:
            lines = [line for line in process.stderr.splitlines() if line.strip()]
            raise ConfigError(f"uv {arguments[0]}: {' '.join(lines[-12:])}")
    return process.stdout


def write_wheel(package: str, folder: Path) -> Path:
    """Write the wheel of an installed package again, from the files that its RECORD lists."""
    package_info = distribution(package)
    files = [
        file
        for file in package_info.files or []
        if file.name not in INSTALLERS_OWN and file.parts[0] != ".." and file.suffix != ".pyc"
    ]
    info = next(file.parent for file in files if file.name == "METADATA")
    record = "".join(f"{file},{file.hash.mode}={file.hash.value},{file.size}\n" for file in files if file.hash)
    wheel = folder / f"{package.replace('-', '_')}-{package_info.version}-py3-none-any.whl"
    with ZipFile(wheel, "w", ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file.locate(), str(file))
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel
