"""The packages of orl as they are installed next to this command: from a checkout, or from wheels."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

from orl_core.errors import ConfigError

from orl_launcher import cli

INSTALLERS_OWN = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"}


def source_of(package: str) -> Path | None:
    """Return the folder of a package that is installed as editable, else None.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        origin: dict[str, Any] = json.loads(distribution(package).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        raise ConfigError(f"{package}: not installed next to orl. Run pip install {package}") from None
    return Path(unquote(urlsplit(str(origin["url"])).path)) if origin.get("dir_info", {}).get("editable") else None


def to_install(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    return "just setup" if source_of("orl-launcher") else f"pip install 'orl-launcher[{extra}]'"


def entry(group: str) -> EntryPoint:
    """Return the entry point of a group of which a package brings one.

    Raises:
        UsageError: no such package is installed.
    """
    if entries := [*entry_points(group=group)]:
        return entries[0]
    raise cli.UsageError(f"{group}: not in this environment. Run {to_install(cli.backend_of())}")


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
