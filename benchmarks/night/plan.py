"""Plan of a scenario's rollouts, and its configuration: names, tasks and the reward that each must get."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core import Task

from benchmarks.night.environment import STEP_REWARD

ENVIRONMENT = "night/Shift"
MOST_TURNS = 5
CONTEXT = 4096


class Planned(Struct, frozen=True, kw_only=True):
    """One rollout: its `rollout_id`, the calls that it takes, and what the last one pays."""

    name: str
    turns: int
    final: float

    @property
    def reward(self) -> float:
        """Return the reward that it must get."""
        return (self.turns - 1) * STEP_REWARD + self.final

    @property
    def task(self) -> Task:
        """Return the task, which names the rollout, so that the server knows whose session it has."""
        return Task(
            env_name=ENVIRONMENT,
            deployment_name=ENVIRONMENT,
            environment_name="shift",
            task_spec={"name": self.name, "turns": self.turns, "final": self.final},
        )


def planned(scenario: str, count: int, seed: int) -> list[Planned]:
    """Return `count` rollouts of `scenario`; the same seed plans the same."""
    chance = random.Random(f"{scenario} {seed}")
    return [
        Planned(
            name=f"{scenario}/{seed}/{number}",
            turns=chance.randint(2, MOST_TURNS),
            final=chance.choice((0.0, 0.25, 0.5, 1.0)),
        )
        for number in range(count)
    ]


def write_plan(path: Path, plan: list[Planned]) -> None:
    """Write a plan for the driver."""
    path.write_bytes(msgspec.json.encode(plan))


def read_plan(path: Path) -> list[Planned]:
    """Read a plan."""
    return msgspec.json.decode(path.read_bytes(), type=list[Planned])


def configuration(url: str, **rollout: Any) -> dict[str, Any]:
    """Return the configuration of rollouts in the environment at `url`, with the budgets `rollout`."""
    return {
        "environments": {ENVIRONMENT: {"base_url": url, "max_turns": MOST_TURNS + 1}},
        "thinking": False,
        "rollout": {"context_tokens": CONTEXT, "turn_tokens": 64, **rollout},
    }
