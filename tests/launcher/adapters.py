"""Trainers' adapters that train nothing: they write the files of a run as real ones do."""

from __future__ import annotations

import json
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, RunAborted
from orl_core.trajectory import StopReason
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.metrics_log import append

from tests.kit.journalled import trajectory_of, write

SIGNAL = signal.SIGTERM  # what a trainer below sends to itself


class Adapter:
    """An adapter with one of the functions below; `without_gpus` has a plan that cannot start here."""

    default_model = ""
    defaults: ClassVar[dict[str, Any]] = {}
    sections: ClassVar[dict[str, type[Struct]]] = {}
    conversion_options = packages = ()

    def __init__(self, train: Callable[[Run], None]) -> None:
        self.train = train
        self._problems = ("this machine has 0 GPUs",) if train is without_gpus else ()

    def resolve(self, config: RunConfig, extra: Sequence[str]) -> RunConfig:
        return config

    def plan(self, run: Run) -> Plan:
        command = "\n".join([f"would train {run.config.trainer.model} with local", *run.extra])
        return Plan(command=command, memory="GiB on each GPU\nsum [0] 9474.0", problems=self._problems)


def _write_metrics(run: Run, steps: int) -> None:
    with (run.folder / "metrics.jsonl").open("a", encoding="utf-8") as lines:
        for step in range(steps + 1):
            kind = "train" if step % 3 else "eval"
            point = {"step": step, "kind": kind, "seconds": 0.1 * step, "Org/Env/success": 0.2 * step}
            lines.write(json.dumps({**point, "Org/Env/reward": 0.1 * step, "Org/Env/rollouts": 4}) + "\n")


def train_well(run: Run) -> None:
    """Three steps, before and after."""
    _write_metrics(run, 3)
    (run.folder / "extra").write_text("|".join(run.extra), encoding="utf-8")
    summary = {"success_before": 0.0, "success_after": 0.6, "seconds_total": 0.3, **run.facts}
    (run.folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def train_and_leave_rollouts(run: Run) -> None:
    """Journal two rollouts and send none, as workers that are killed."""
    _write_metrics(run, 2)
    for key in ("r1", "r2"):
        trajectory = trajectory_of(key=key)
        task = structs.replace(trajectory.job.task, env_name="Org/Env")
        write(run.folder, structs.replace(trajectory, job=structs.replace(trajectory.job, task=task)))


def train_and_leave_rollouts_interrupted(run: Run) -> None:
    """Leave rollouts behind, and end with a signal."""
    train_and_leave_rollouts(run)
    _signal_in_a_callback()
    interrupt.check()


def train_in_error(run: Run, sound: int = 0) -> None:
    """Two steps of four rollouts, of which `sound` did not end in ERROR; the environment is gone."""
    for step in (1, 2):
        metrics = {"Org/Env/rollouts": 4.0, "Org/Env/judged": float(sound)}
        append(run.folder / "metrics.jsonl", "train", step, metrics, seconds=0.1)
    write(run.folder, structs.replace(trajectory_of(), stop_reason=StopReason.ERROR, error="nobody answers"))


def train_half_in_error(run: Run) -> None:
    train_in_error(run, sound=2)


def train_unplayed(run: Run) -> None:
    """Two steps of rollouts that ended before their first turn."""
    for step in (1, 2):
        metrics = {"Org/Env/rollouts": 4.0, "Org/Env/judged": 4.0, "Org/Env/turns": 0.0}
        append(run.folder / "metrics.jsonl", "train", step, metrics, seconds=0.1)


def train_without_signal(run: Run, success: float = 0.0) -> None:
    """Three steps in which all rollouts of each group had one reward."""
    named = {"rollouts": 4.0, "judged": 4.0, "turns": 1.0, "groups": 2.0, "equal_groups": 1.0, "success": success}
    for step in (1, 2, 3):
        metrics = {f"Org/Env/{name}": value for name, value in named.items()}
        append(run.folder / "metrics.jsonl", "train", step, metrics, seconds=0.1)


def train_on_solved_tasks(run: Run) -> None:
    train_without_signal(run, success=1.0)


def train_until_interrupted(run: Run) -> None:
    """As if Ctrl-C came."""
    _write_metrics(run, 2)
    raise KeyboardInterrupt


def _signal_in_a_callback() -> None:
    """Send SIGNAL to this process inside a weakref callback, where Python drops what a handler raises."""

    class Thing:
        pass

    def callback(_: object) -> None:
        os.kill(os.getpid(), SIGNAL)
        for _ in range(1000):  # the handler runs here
            pass

    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing
    assert reference() is None


def train_until_signalled(run: Run) -> None:
    """As a trainer that looks for a signal after its second step."""
    _write_metrics(run, 2)
    _signal_in_a_callback()
    interrupt.check()


def save_until_signalled(run: Run) -> None:
    """As `train_until_signalled`, with a checkpoint."""
    (run.folder / "checkpoint").mkdir()
    (run.folder / "checkpoint" / "config.json").write_text('{"model_type": "none"}', encoding="utf-8")
    train_until_signalled(run)


def train_through_a_signal(run: Run) -> None:
    """As if the signal came during the last save."""
    _signal_in_a_callback()
    train_well(run)


def train_until_aborted(run: Run) -> None:
    """As if the breaker ended the run."""
    _write_metrics(run, 2)
    raise RunAborted("the engine is gone")


def _fill_the_report(run: Run) -> None:
    """Let the report find no place, as on a full disk."""
    (run.folder / "report.html").mkdir()


def train_before_a_full_disk(run: Run) -> None:
    _fill_the_report(run)
    train_well(run)


def train_until_aborted_before_a_full_disk(run: Run) -> None:
    _fill_the_report(run)
    train_until_aborted(run)


def train_until_full(run: Run) -> None:
    """As if a file of the run found no room."""
    _write_metrics(run, 2)
    Path("/dev/full").write_text("x", encoding="utf-8")


def train_until_broken(run: Run) -> None:
    """As if the trainer ran out of memory."""
    _write_metrics(run, 2)
    raise MemoryError("the GPU is full")


def refuse(_: Run) -> None:
    """As a trainer that finds a setting that it cannot obey."""
    raise ConfigError("no such model")


def without_gpus(run: Run) -> None:
    refuse(run)
