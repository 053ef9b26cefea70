"""A second environment, as users have one: a Python that finds slime (a stand-in) and orl's packages."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
STAND_IN_RAY = Path(__file__).parent / "stand_in_ray"


def make_environment(folder: Path, *, adapter: bool = True, real_ray: bool = False) -> Path:
    """The Python of a new environment in `folder`; without `adapter`, orl-slime is not installed there."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    # What the environment has of others, it has from this one: nothing is downloaded for a test.
    stand_ins = [STAND_IN, *([] if real_ray else [STAND_IN_RAY])]
    paths = [*stand_ins, *(Path(path) for path in sys.path if path.endswith("site-packages"))]
    packages = ["orl-core", "orl-rollout", *(["orl-slime"] if adapter else [])]
    paths += [ROOT / "packages" / package / "src" for package in packages]
    (site / "second.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    return folder / "bin" / "python3"
