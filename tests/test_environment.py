"""A recipe without an extra installs every trainer's command, and nothing that weighs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_default_environment_has_cluster_adapters_and_no_torch():
    exported = subprocess.run(
        [os.environ.get("UV", "uv"), "export", "--frozen", "--no-hashes", "--no-annotate", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()
    assert {"-e ./packages/orl-slime", "-e ./packages/orl-miles", "-e ./apps/launcher"} <= set(exported)
    assert [line for line in exported if line.split("==")[0] in ("torch", "trl", "ray")] == []
