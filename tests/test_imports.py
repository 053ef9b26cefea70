"""Imports of our own modules name what is there, also in texts that become programs, which no linter reads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from symtable import symtable

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, *ROOT.glob("*/*/src")]
OURS = r"(?:orl_\w+|tests|benchmarks|tools)(?:\.[a-z_]\w*)*"
IMPORT = re.compile(rf'\bfrom ({OURS}) import (\([^)]*\)|[\w, ]+)|(?:\bimport|-m"?,? "?) ?({OURS}(?:, {OURS})*)')
KINDS = {".py", ".sh", ".md", ".j2", ".yml"}
LEAST = 4000  # imports in the repository


def place_of(module: str) -> Path | None:
    """Return the file or folder of a module, None if there is none."""
    tail = module.replace(".", "/")
    candidates = [folder / form for folder in FOLDERS for form in (f"{tail}.py", f"{tail}/__init__.py", tail)]
    return next(filter(Path.exists, candidates), None)


@cache
def names_of(module: str) -> set[str]:
    """Return the names that a module assigns, defines or imports."""
    place = place_of(module)
    if place is None or place.is_dir():
        return set()
    symbols = symtable(place.read_text("utf-8"), str(place), "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a text imports of ours: a module, and a name of it or nothing."""
    for module, names, plain in IMPORT.findall(text):
        for one in re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", names)):
            yield module, one
        for one in plain.split(", ") if plain else ():
            yield one, ""


def is_there(module: str, name: str) -> bool:
    if not name:
        return place_of(module) is not None
    return name in names_of(module) or place_of(f"{module}.{name}") is not None


def test_imports_of_our_modules_resolve() -> None:
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).splitlines()
    files = [ROOT / name for name in listed if Path(name).suffix in KINDS and (ROOT / name).is_file()]
    files.remove(Path(__file__))  # its negative controls
    found = [(file.name, *one) for file in files for one in imported(file.read_text("utf-8"))]
    assert len(found) > LEAST
    assert [one for one in found if not is_there(*one[1:])] == []


def test_functions_of_packages_have_names_of_no_module() -> None:
    """Such a module would take the place of the function once it is imported."""
    files = [*ROOT.glob("packages/*/src/*/__init__.py")]
    named = [(file.parent, name) for file in files for name in re.findall(r"^def (\w+)", file.read_text("utf-8"), re.M)]
    assert (ROOT / "packages/orl-local/src/orl_local", "plan") in named
    assert [(place, name) for place, name in named if (place / name).with_suffix(".py").is_file()] == []


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("import sys; from tests.gone.environment import make", ("tests.gone.environment", "make")),
        ("from tests.conftest import short_pauses, no_such as x", ("tests.conftest", "no_such")),
        ("import orl_core, orl_core.gone", ("orl_core.gone", "")),
        ('"-m", "benchmarks.gone"', ("benchmarks.gone", "")),
        ("python -m benchmarks.gone --quick", ("benchmarks.gone", "")),
    ],
)
def test_negative_control_what_is_gone_is_found(text: str, gone: tuple[str, str]) -> None:
    assert [one for one in imported(text) if not is_there(*one)] == [gone]
