"""Disk that the checkpoints of a run with TRL need, compared with the disk that is free."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from typing import Any

from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.memory.estimate import GIB, Memory, MemoryReport
from orl_rollout.memory.model import shape_of
from orl_rollout.run_folder.contract import Run
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.run_plan.gpu_memory import held, sizes_of

MIB = 1 << 20


def checkpoint_of(run: Run, settings: GRPOConfig, config: Mapping[str, Any]) -> Memory:
    """Return the bytes of one checkpoint of the model with this config.json: weights, and what the optimizer keeps.

    Raises:
        ConfigError: orl cannot count the parameters of the model.
    """
    whole = held(shape_of(config), sizes_of(run, settings))
    return structs.replace(whole, optimizer=0) if settings.save_only_model else whole


def disk_report(run: Run, settings: GRPOConfig, config: Mapping[str, Any]) -> MemoryReport:
    """Return one line on the disk for checkpoints, and a note if it does not suffice.

    The older one of those that are kept goes after the newer one is whole, so there is one more while it is written.
    """
    try:
        size = checkpoint_of(run, settings, config).total
    except ConfigError:  # the estimate of memory says it
        return MemoryReport()
    saves = math.ceil(settings.max_steps / settings.save_steps)
    kept = min(settings.save_total_limit or saves, saves)
    needed = (kept + 1) * size
    folder = run.folder.absolute()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    line = f"checkpoints need {_told(needed)} of disk: {kept} kept and one more, {_told(size)} each"
    note = f"{line}; the disk of {run.folder} has {_told(free)} free. Make room, or lower `-- --save-total-limit`"
    return MemoryReport(table=f"{line}; {_told(free)} are free", notes=(note,) if needed > free else ())


def _told(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
