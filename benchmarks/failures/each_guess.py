"""An advantage for each guess against one for the whole rollout, trained by TRL: `turn_advantages`.

The game is GuessNumber, and each guess pays for what it rules out. This is no published failure. It shows the estimator
that the failure by turn index is compared with, on a model.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from orl_rollout.run_folder.metrics_log import read

from benchmarks.failures.plan import Plan
from benchmarks.failures.plot import Plot
from benchmarks.night.training import ORL
from examples.loop import GAME

ARMS = {"one advantage for a rollout": False, "one for each guess": True}


def compare(checkpoint: Path, url: str, seed: int, plan: Plan) -> dict[str, list[float]]:
    """Return for each arm the success on held-out tasks: at the start, and after each `plan.every` steps."""
    return {arm: _trained(checkpoint, url, seed, plan, turns=turns) for arm, turns in ARMS.items()}


def plot(plan: Plan) -> Plot:
    """Return the words of the plot."""
    return Plot(title="TRL, a reward for each guess", value="success, held-out", every=plan.every)


def _trained(checkpoint: Path, url: str, seed: int, plan: Plan, *, turns: bool) -> list[float]:
    settings = {
        f"environments.{GAME}.base_url": url,
        "turn_advantages": json.dumps(turns),
        "eval.interval": plan.every,
        "eval.max_tasks": plan.held_out,
    }
    command = [
        *(*ORL, "train", "local", "--model", str(checkpoint.absolute()), "--name", "run"),
        *("--seed", str(seed), "--num-rollout", str(plan.faulty), "--rollout-batch-size", str(plan.tasks)),
        *("--n-samples", str(plan.group)),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        rows = read(Path(folder, "runs", "run", "metrics.jsonl"))
    return [row.metrics[f"{GAME}/success"] for row in rows if row.kind == "eval"]
