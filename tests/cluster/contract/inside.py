"""Real slime and real miles behind one protocol: what `test_real_contract` plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from orl_core.errors import ConfigError, RunAborted
from orl_miles.generate import RunEnded

from tests.kit.torch_saved import save_fsdp, save_torch_dist
from tests.miles import host as miles
from tests.miles import hosting as in_miles
from tests.slime import host as slime
from tests.slime import playing as in_slime
from tests.slime.cases import CASES, Case

SECONDS = 120  # that a hang is waited for


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A trainer: `of` finds what it has under a dotted name, `hosting` starts its rollout code with options.

    `refused` and `aborted` are what leaves it for a configuration that cannot be played, and for too many failures.
    """

    name: str
    of: Callable[[str], Any]
    hosting: Callable[..., AbstractContextManager[Any]]
    refused: type[BaseException]
    aborted: type[BaseException]
    f1_score: str
    save: Callable[..., Path]  # a checkpoint, as the backend writes it
    saved: int  # the number that the checkpoint of step 20 has
    different: dict[str, dict[str, Any]] = field(default_factory=dict)  # cases of the contract, by name

    @property
    def cases(self) -> list[Case]:
        return [replace(case, **self.different.get(case.name, {})) for case in CASES]


SLIME = Inside(
    name="slime",
    of=slime.of_slime,
    hosting=in_slime.hosting,
    refused=ConfigError,
    aborted=RunAborted,
    f1_score="slime.rollout.rm_hub.f1_score",
    save=save_torch_dist,
    saved=19,
)
MILES = Inside(
    name="miles",
    of=miles.of_miles,
    hosting=in_miles.hosting,
    refused=RunEnded,
    aborted=RunEnded,
    f1_score="miles.rollout.rm_hub.f1.f1_score",
    save=save_fsdp,
    saved=20,
    # miles asserts that nobody has set a reward yet, and draws another group for every assertion.
    different={
        "9 the reward model is asked for whole groups": {
            "args": {"group_rm": True, "custom_rm_path": "orl_miles.hooks.reward"},
            "raises": "group-rm",
        }
    },
)
BOTH = (SLIME, MILES)


def param(inside: Inside, *values: Any, id: str = "") -> Any:  # noqa: A002  pytest's name
    """A case of `inside`, marked by its name."""
    return pytest.param(inside, *values, marks=getattr(pytest.mark, inside.name), id=f"{inside.name}{id and f' {id}'}")


by_trainer = pytest.mark.parametrize("inside", [param(one) for one in BOTH])


async def step(host: Any, *rollout_id: int) -> tuple[list[list[Any]], dict[str, Any]]:
    """One step as the trainer's manager takes it: the groups, logged, and what the trainer gets of them."""
    groups = await asyncio.wait_for(asyncio.to_thread(host.rollout, *rollout_id), SECONDS)
    host.log(groups)
    return groups, host.train_data(groups)


def flat(groups: list[Any]) -> list[Any]:
    """The samples of groups, of calls that return lists too."""
    return [sample for one in groups for sample in (flat(one) if isinstance(one, list) else [one])]
