"""`orl doctor` on the trainer: its adapter is installed, and it can plan a run of this configuration.

It knows no trainer: an adapter's own `plan` asks the Python that has the trainer, and nothing is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_launcher.doctor.report import Report, Verdict
from orl_launcher.trainers import RUNS, WOULD_NOT_START, missing_tasks, plan_run

if TYPE_CHECKING:
    from orl_core.config import RunConfig


def check_trainer(page: Report, config: RunConfig, python: str | None) -> None:
    """Find the adapter and let it plan a run."""
    backend = config.trainer.backend
    if missing := missing_tasks(config):
        page.say(Verdict.FAILED, missing)
    plan = page.attempt(backend, lambda: plan_run(config, RUNS / config.openreward_run_name, python=python))
    if plan is None:
        return
    page.say(Verdict.OK, f"{backend}: its flags and sizes fit; orl train {backend} --dry-run shows it")
    for problem in plan.problems:
        page.say(Verdict.WARNING, f"{backend}: {WOULD_NOT_START}: {problem}")
    for note in plan.notes:
        page.say(Verdict.UNCHECKED, f"{backend}: {note}")
