"""Decides how a run is reported to Weights & Biases. No trainer is known here, and wandb is not imported.

A run is reported if its user asks for it (a project, a run name, a mode) or has a key. The key is the variable, or the
login that `wandb login` writes to the netrc file. Without a key, a run that asks is recorded offline.
"""

from __future__ import annotations

import netrc
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError

WANDB_KEY = "WANDB_API_KEY"
HOST = "https://api.wandb.ai"


class Tracking(Struct, frozen=True, kw_only=True):
    """Reporting of a run: `mode` is None if it is not. `asked` tells whether its user asked; `note` is for them."""

    mode: Literal["online", "offline"] | None = None
    requested: bool = False
    note: str = ""


def tracking_of(config: TrainerConfig) -> Tracking:
    """Return how the run of `config` is reported. WANDB_MODE counts where `wandb_mode` is not set.

    Raises:
        ConfigError: `wandb_mode: online`, and there is no key.
    """
    named = bool(config.wandb_project or config.wandb_run)
    requested = named or config.wandb_mode in ("online", "offline")
    mode = config.wandb_mode or os.environ.get("WANDB_MODE", "")
    has_key = bool(os.environ.get(WANDB_KEY)) or _is_logged_in()
    if mode == "disabled":
        source = "wandb_mode" if config.wandb_mode else "WANDB_MODE"
        return Tracking(note=f"{source} is disabled: nothing is reported to Weights & Biases" if named else "")
    if config.wandb_mode == "online" and not has_key:
        raise ConfigError(f"wandb_mode online needs a key: set {WANDB_KEY}, run `wandb login`, or give offline")
    if not requested and not has_key:
        return Tracking()
    if has_key or mode == "offline":
        return Tracking(mode="offline" if mode == "offline" else "online", requested=requested)
    note = f"there is no key of Weights & Biases ({WANDB_KEY}, or `wandb login`): the run is recorded offline, in its "
    return Tracking(mode="offline", requested=requested, note=f"{note}folder; `wandb sync` uploads it")


def _is_logged_in() -> bool:
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or HOST).hostname
    with suppress(OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return host in netrc.netrc(file).hosts
    return False
