"""Files of configs/ that tests load."""

from __future__ import annotations

from pathlib import Path

LOCAL = str(Path(__file__).parents[2] / "configs" / "local.yaml")
