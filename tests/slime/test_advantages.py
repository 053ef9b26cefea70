"""REINFORCE++ with rows that do not train: slime's own returns assert that there are none."""

from __future__ import annotations

import sys
from argparse import Namespace
from types import ModuleType
from typing import Any

import pytest
import torch
from orl_slime.advantages import reinforce_plus_plus

from tests.slime.host import of_slime


def returns_of(*, rewards: Any, kl: Any, loss_masks: Any, kl_coef: float, gamma: float, **_: Any) -> list[Any]:
    """Compute what slime computes with one context-parallel rank, in the plainest words."""
    made = []
    for reward, one, mask in zip(rewards, kl, loss_masks, strict=True):
        assert mask.sum() > 0, "fully masked"
        token_rewards = -kl_coef * one * mask
        token_rewards[mask.nonzero()[-1, 0]] += reward
        steps = torch.arange(len(one))
        discount = torch.triu(gamma ** (steps[None, :] - steps[:, None]).clamp(min=0).float())
        made.append(discount @ token_rewards)
    return made


def batch(*masks: list[int]) -> dict[str, Any]:
    return {
        "kl": [torch.full((len(mask),), 0.5) for mask in masks],
        "loss_masks": [torch.tensor(mask) for mask in masks],
        "rewards": [float(row + 1) for row in range(len(masks))],
        "response_lengths": [len(mask) for mask in masks],
        "total_lengths": [len(mask) + 3 for mask in masks],
    }


ARGS = Namespace(kl_coef=0.1, gamma=0.9)


@pytest.fixture
def slime(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("slime.utils.ppo_utils")
    module.get_reinforce_plus_plus_returns = returns_of  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "slime.utils.ppo_utils", module)


@pytest.mark.usefixtures("slime")
def test_masked_rows_get_zeros_and_others_slimes_returns():
    data = batch([1, 1, 0], [0, 0], [0, 1], [0])
    reinforce_plus_plus(ARGS, data)
    whole = batch([1, 1, 0], [0, 0], [0, 1], [0])
    expected = returns_of(
        rewards=[1.0, 3.0], kl=whole["kl"][0::2], loss_masks=whole["loss_masks"][0::2], kl_coef=0.1, gamma=0.9
    )
    for name in ("advantages", "returns"):
        assert [one.tolist() for one in data[name][1::2]] == [[0.0, 0.0], [0.0]]
        torch.testing.assert_close(data[name][0::2], expected)


@pytest.mark.usefixtures("slime")
def test_batch_without_trained_tokens_has_zeros():
    data = batch([0], [0, 0])
    reinforce_plus_plus(ARGS, data)
    assert [one.tolist() for one in data["advantages"]] == [[0.0], [0.0, 0.0]]


@pytest.mark.slime
def test_real_slime_refuses_masked_rows_and_takes_ours(monkeypatch: pytest.MonkeyPatch):
    slime = of_slime("slime.utils.ppo_utils")
    core = ModuleType("megatron.core")
    core.mpu = Namespace(get_context_parallel_world_size=lambda: 1)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    data = batch([1, 1, 0], [0], [0, 1])
    rewards = torch.tensor(data["rewards"])
    columns = {name: data[name] for name in ("kl", "loss_masks", "response_lengths", "total_lengths")}
    with pytest.raises(AssertionError, match="masked"):
        slime.get_reinforce_plus_plus_returns(rewards=rewards, **columns, kl_coef=0.1, gamma=0.9)
    reinforce_plus_plus(ARGS, data)
    assert data["advantages"][1].tolist() == [0.0]
    assert all(one.any() for one in data["advantages"][0::2])
