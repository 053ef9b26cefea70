"""`orl doctor` on the trainer: its adapter is there, and what it would run can be made of this configuration.

It knows no trainer: an adapter's own `plan` asks the Python that has the trainer, and nothing is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from orl_launcher.commands.train import RUNS, find_adapter
from orl_launcher.doctor.report import Page, Verdict
from orl_launcher.playground import reachable

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.run_folder.contract import Trainer

OBSTACLE = "# it would not start"  # how a plan's lines say so


def check_trainer(page: Page, config: RunConfig, python: str | None) -> None:
    """Find the adapter and let it plan a run."""
    from orl_rollout.run_folder.contract import Run

    backend = config.trainer.backend
    folder = RUNS / config.openreward_run_name
    tasks = config.trainer.task_data
    if tasks and not Path(tasks).is_file():
        page.say(Verdict.FAILED, f"trainer.task_data {tasks}: no such file; orl prepare writes one")
    held_out = any(environment.eval_splits for environment in config.environments.values())
    run = Run(
        config=reachable(config),
        folder=folder,
        task_data=Path(tasks or folder / "tasks.jsonl"),
        eval_data=folder / "eval_tasks.jsonl" if held_out else None,
        python=python,
    )
    lines = page.attempt(backend, lambda: cast("Trainer", find_adapter(backend).load()).plan(run))
    if lines is None:
        return
    told = [line for line in lines if line.startswith("# ")]
    shown = f"orl train {backend} --dry-run shows it"
    page.say(Verdict.OK, f"{backend}: its flags and sizes fit; {shown}")
    for line in told:
        verdict = Verdict.WARNING if line.startswith(OBSTACLE) else Verdict.UNCHECKED
        page.say(verdict, f"{backend}: {line.removeprefix('# ')}")
