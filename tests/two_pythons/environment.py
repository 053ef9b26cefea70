"""A second environment, as users have one: a Python that finds a trainer (a stand-in) and orl's packages."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAND_INS = {trainer: ROOT / "tests" / trainer / "stand_in" for trainer in ("slime", "miles")}
SHARED = Path(__file__).parent / "shared"  # what all stand-ins have: a torch that counts GPUs, a train.py
RAY = Path(__file__).parent / "cluster"  # a Ray of one node, unless the real one is wanted


def make_environment(
    folder: Path, *trainers: str, adapter: bool = True, real_ray: bool = False, flash: bool = True
) -> Path:
    """The Python of a new environment in `folder` with the stand-ins for `trainers`, and our packages.

    Without `adapter`, those of the trainers are not installed. miles has a build of flash attention, if `flash`.
    """
    packages = ["orl-core", "orl-rollout", "orl-gateway", "orl-cluster"]
    packages += [f"orl-{trainer}" for trainer in trainers if adapter]
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    # What the environment has of others, it has from this one: nothing is downloaded for a test.
    paths = [
        *(STAND_INS[trainer] for trainer in trainers),
        SHARED,
        *([] if real_ray else [RAY]),
        *(Path(path) for path in sys.path if path.endswith("site-packages")),
    ]
    paths += [ROOT / "packages" / package / "src" for package in packages]
    (site / "second.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    if "miles" in trainers and flash:
        made = site / "flash_attn-2.8.3.dist-info"
        made.mkdir()
        (made / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n", encoding="utf-8")
    return folder / "bin" / "python3"
