"""Our metrics in W&B's and TensorBoard's own files, written by slime's own tracking as its processes start it."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.kit.wandb_files import rows_of
from tests.slime.host import of_slime
from tests.slime.playing import Hosted, hosting

pytestmark = pytest.mark.slime
KEY = "orl-secret-key-7f3a"
OURS = "rollout/playground/GuessNumber/"
NAMES = ("reward", "success", "turns", "cache_hits", "stop/finished", "generation_seconds", "environment_seconds")
EVALUATED = "eval/playground/GuessNumber/success"
WANDB = {
    "use_wandb": True,
    "wandb_mode": "offline",
    "wandb_project": "orl",
    "wandb_group": "tracked",
    "wandb_random_suffix": False,
    "wandb_team": None,
    "wandb_key": None,
    "wandb_host": None,
}
TENSORBOARD = {"use_tensorboard": True, "tb_project_name": "orl", "tb_experiment_name": "tracked"}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder for what the trackers leave behind, and a key that none of it may hold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")  # slime sets it: put back afterwards
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)


async def tracked(hosted: Hosted, **changes: Any) -> None:
    """One step and one evaluation, tracked as slime's driver and its rollout manager do it."""
    tracking = of_slime("slime.observability.logging_utils")
    with hosted(hosting, custom_rm_path="orl_slime.hooks.reward", **changes) as (host, _):
        tracking.init_tracking(host.args)  # the driver
        tracking.finish_tracking(host.args)
        tracking.init_tracking(host.args, primary=False)  # the rollout manager
        groups = await asyncio.to_thread(host.rollout)
        host.log(groups)
        host.hold_out("held_out", hosted.folder / "tasks.jsonl")
        host.log_evaluation(await asyncio.to_thread(host.evaluate))
        tracking.finish_tracking(host.args)


async def test_metrics_of_an_environment_are_in_wandbs_offline_files(hosted: Hosted, tmp_path: Path):
    await tracked(hosted, **WANDB, wandb_dir=str(tmp_path / "tracked"))
    importlib.import_module("wandb").teardown()  # W&B's own process writes the end of a finished run
    files = list((tmp_path / "tracked").rglob("*.wandb"))
    rows = [row for file in files for row in rows_of(file)]
    (ours,) = [row for row in rows if OURS + "reward" in row]
    assert all(OURS + name in ours for name in NAMES)
    assert ours["rollout/step"] == "0"
    assert float(ours[OURS + "success"]) == 0.5
    assert any("rollout/response_len/mean" in row for row in rows), "slime's own are there, too"
    (evaluated,) = [row for row in rows if EVALUATED in row]
    assert evaluated["eval/step"] == "0"
    left = [path for path in (tmp_path / "tracked").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in left)


async def test_metrics_of_an_environment_are_in_tensorboards_event_files(hosted: Hosted, tmp_path: Path):
    await tracked(hosted, **TENSORBOARD)
    of_slime("slime.observability.tensorboard_utils._TensorboardAdapter")(None).finish()
    reading: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(tmp_path / "tensorboard_log" / "orl" / "tracked")).Reload()
    found = events.Tags()["scalars"]
    assert {*(OURS + name for name in NAMES), EVALUATED, "rollout/response_len/mean"} <= {*found}
    assert [(event.step, event.value) for event in events.Scalars(OURS + "success")] == [(0, 0.5)]
