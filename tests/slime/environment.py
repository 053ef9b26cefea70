"""The second environment with the stand-in for slime."""

from __future__ import annotations

from pathlib import Path

from tests.two_pythons import environment

STAND_IN = Path(__file__).parent / "stand_in"


def make_environment(folder: Path, *, adapter: bool = True, real_ray: bool = False) -> Path:
    """The Python of a new environment in `folder`; without `adapter`, orl-slime is not installed there."""
    packages = ["orl-core", "orl-rollout", "orl-cluster", *(["orl-slime"] if adapter else [])]
    return environment.make_environment(folder, STAND_IN, packages, real_ray=real_ray)
