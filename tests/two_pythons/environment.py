"""A second environment, as users have one: a Python that finds a trainer (a stand-in) and orl's packages."""

from __future__ import annotations

import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = Path(__file__).parent / "shared"  # what all stand-ins have: a torch that counts GPUs, a train.py
RAY = Path(__file__).parent / "cluster"  # a Ray of one node, unless the real one is wanted


def make_environment(folder: Path, stand_in: Path, packages: Sequence[str], *, real_ray: bool = False) -> Path:
    """The Python of a new environment in `folder`, with the checkout `stand_in` and `packages` of orl's."""
    venv.create(folder, symlinks=True)
    site = site_of(folder)
    # What the environment has of others, it has from this one: nothing is downloaded for a test.
    paths = [
        stand_in,
        SHARED,
        *([] if real_ray else [RAY]),
        *(Path(path) for path in sys.path if path.endswith("site-packages")),
    ]
    paths += [ROOT / "packages" / package / "src" for package in packages]
    (site / "second.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    return folder / "bin" / "python3"


def site_of(folder: Path) -> Path:
    """The folder of an environment that holds its packages."""
    return next(folder.glob("lib/python3*/site-packages"))


def add_distribution(folder: Path, name: str, version: str) -> None:
    """Let a package count as installed in the environment in `folder`, without any of its modules."""
    made = site_of(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
