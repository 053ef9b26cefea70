"""The cases of the contract, and rewards, on miniatures of slime and of miles: what `just check` shows without them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orl_miles.hooks
import orl_slime.hooks
import pytest
from orl_core.errors import ConfigError

from tests.cluster.contract.inside import BOTH, Inside
from tests.miles.miniature import ClassApi, arguments
from tests.miles.miniature import Sample as MilesSample
from tests.slime.cases import Case
from tests.slime.miniature import Miniature, Sample
from tests.slime.miniature import arguments as options
from tests.slime.playing import configuration, engine, play

MINIATURES: dict[str, type[Miniature]] = {"slime": Miniature, "miles": ClassApi}
CASES = [(one, case) for one in BOTH for case in one.cases if case.alone or ("group_rm" in case.args and case.raises)]
by_hooks = pytest.mark.parametrize(("hooks", "sample"), [(orl_slime.hooks, Sample), (orl_miles.hooks, MilesSample)])


@pytest.mark.parametrize(("inside", "case"), CASES, ids=lambda one: one.name)
async def test_a_case_of_the_contract(
    inside: Inside, case: Case, environment: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with engine(checkpoint, case.faults, thinks=case.thinks) as server:
        args = arguments(checkpoint, tmp_path, server.url, configuration(case, environment), **case.args)
        host = MINIATURES[inside.name](args)
        if case.raises:
            with pytest.raises(inside.refused, match=case.raises):
                await asyncio.to_thread(host.rollout)
            return
        await play(case, host, server, monkeypatch)


@by_hooks
def test_unknown_estimator_does_not_train_on_raw_rewards(hooks: Any, sample: Any):
    samples = [sample(index=i, group_index=0, reward=float(i), loss_mask=[1]) for i in range(2)]
    for normalised in (True, False):
        with pytest.raises(ConfigError, match="own"):
            hooks.post_process(options(advantage_estimator="own", rewards_normalization=normalised), samples)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", [0.7071, -0.7071, 0.0, 0.0]),
        ("gspo", [0.7071, -0.7071, 0.0, 0.0]),
        ("reinforce_plus_plus_baseline", [0.5, -0.5, 0.0, 0.0]),
        ("ppo", [1.0, 0.0, 1.0, 5.0]),
    ],
)
@by_hooks
async def test_rewards_are_what_the_estimator_wants(hooks: Any, sample: Any, estimator: str, expected: list[float]):
    samples = [sample(index=i, group_index=i // 2, reward=r, loss_mask=[1]) for i, r in enumerate([1.0, 0.0, 1.0, 5.0])]
    samples[3].remove_sample = True
    raw, rewards = hooks.post_process(options(advantage_estimator=estimator), samples)
    assert raw == [1.0, 0.0, 1.0, 5.0]
    assert rewards == pytest.approx(expected, abs=1e-3)
    assert await hooks.reward(options(), samples) == raw
    kept, dropped = hooks.has_signal(options(), samples[:2]), hooks.has_signal(options(), samples[2:])
    assert (getattr(kept, "keep", kept), getattr(dropped, "keep", dropped)) == (True, False)
