"""Reports a run to Weights & Biases and TensorBoard. No trainer is known here.

A run is reported to Weights & Biases if its user asks for it (a project, a run name, a mode) or has a key. The key is
the variable, or the login that `wandb login` writes to the netrc file. Without a key, a run that asks is recorded
offline. A trainer on a cluster reports by itself; the others need the packages here, and only if they are used.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs
from orl_core import ConfigError, TrainerConfig, boundary

from orl_rollout.logs import logger_of
from orl_rollout.run_folder.contract import Run

WANDB_KEY = "WANDB_API_KEY"
HOST = "https://api.wandb.ai"
Report = Callable[[str, int, Mapping[str, float]], None]
logger = logger_of("orl")


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


def tracked_by(config: TrainerConfig) -> Tracking:
    """Return `tracking_of` on this machine. Only a user who asks for it needs wandb."""
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError(f"`tensorboard` is set, and {_install('tensorboard')}")
    tracked = tracking_of(config)
    if tracked.mode is None or find_spec("wandb") is not None:
        return tracked
    if tracked.requested:
        raise ConfigError(f"Weights & Biases is asked for, and {_install('wandb')}")
    return structs.replace(
        tracked, mode=None, note=f"Weights & Biases is not used, although you have a key: {_install('wandb')}"
    )


def _install(extra: str) -> str:
    return f"{extra} is not installed. Install it: uv pip install {extra}"


@contextmanager
def reporting(run: Run) -> Generator[Report]:
    """Open the trackers that the user asks for. Yield the function that takes the kind, step and metrics of a row.

    The run at Weights & Biases is where libraries find it. The configuration goes there without secrets.
    """
    config = run.config.trainer
    tracked = tracked_by(config)
    if tracked.note:
        logger.warning("%s", tracked.note)
    add: list[Callable[[dict[str, float], int], Any]] = []
    with ExitStack() as stack:
        if tracked.mode is not None:
            import wandb

            with boundary(ConfigError, "opening the run at Weights & Biases"):
                opened = wandb.init(
                    project=config.wandb_project or "orl",
                    name=config.wandb_run or run.folder.name,
                    mode=tracked.mode,
                    dir=str(run.folder),
                    config=run.config.public(),
                )
            add.append(stack.enter_context(opened).log)
        if config.tensorboard:
            from tensorboard.summary import Writer  # pyright: ignore[reportMissingTypeStubs]

            writer: Any = Writer(str(run.folder / "tensorboard"))
            stack.callback(writer.close)
            add.append(lambda named, step: [writer.add_scalar(name, value, step) for name, value in named.items()])

        def report(kind: str, step: int, metrics: Mapping[str, float]) -> None:
            for one in add:
                one({f"{kind}/{name}": value for name, value in metrics.items()}, step)

        yield report
