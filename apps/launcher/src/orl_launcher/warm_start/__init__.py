"""The episodes of a warm start, from a program, a journal or a file; `to_data` alone makes rows of them.

It knows no trainer. `made_model` is for examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from orl_core.config import RunConfig

__all__ = ["made_model"]


def made_model(config: RunConfig, folder: Path) -> Path:
    """Return the checkpoint of the playground's model that `config` names. It is made in `folder` if it is missing."""
    from orl_launcher.made_models import ensure

    return ensure(config, folder)
