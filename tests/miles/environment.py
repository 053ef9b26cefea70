"""The second environment with the stand-in for miles."""

from __future__ import annotations

from pathlib import Path

from tests.two_pythons import environment

STAND_IN = Path(__file__).parent / "stand_in"
PACKAGES = ("orl-core", "orl-rollout", "orl-cluster", "orl-miles")


def make_environment(folder: Path, *, stand_in: Path = STAND_IN, flash: bool = True) -> Path:
    """The Python of a new environment in `folder`, which counts as one with a build of flash attention."""
    python = environment.make_environment(folder, stand_in, PACKAGES)
    if flash:
        environment.add_distribution(folder, "flash-attn", "2.8.3")
    return python
