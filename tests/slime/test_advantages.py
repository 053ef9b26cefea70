"""Advantages of tokens: REINFORCE++ with rows that do not train, and turn rewards."""

from __future__ import annotations

import pickle
import sys
from argparse import Namespace
from types import ModuleType
from typing import Any

import pytest
import torch
from orl_cluster.hooks.samples import TURNS, TurnAdvantages, store_turns
from orl_core.datum import Datum
from orl_core.errors import ConfigError
from orl_slime.advantages import reinforce_plus_plus, turn_advantages
from orl_slime.hooks import has_signal, post_process

from tests.slime.host import of_slime
from tests.slime.miniature import Sample, arguments


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


PATH = "orl_slime.advantages.turn_advantages"


def datum(*turns: tuple[int, float]) -> Datum:
    """Return a datum with these turns: the index of the last id, and the reward."""
    length = turns[-1][0] + 1
    ones = (1,) * length
    ends = tuple(end for end, _ in turns)
    return Datum(
        task_key="t",
        rollout_id="r",
        prompt=(7,),
        response=ones,
        sampled=ones,
        loss_mask=ones,
        logprobs=(-0.5,) * length,
        rewards=turns,
        ends=ends,
    )


def rollout(index: int, reward: float, *datums: Datum) -> list[Sample]:
    samples = [
        Sample(index=index, rollout_id=index, reward=reward, loss_mask=[1], response_length=len(one.response))
        for one in datums
    ]
    store_turns(samples, datums)
    return samples


def test_return_to_go_is_compared_with_others_of_the_group():
    first = rollout(0, 3.0, datum((1, 1.0), (4, 2.0)))
    second = rollout(1, 1.0, datum((2, 1.0)), datum((3, 0.0)))
    plain = Sample(index=2, reward=5.0, loss_mask=[1, 1], response_length=2, group_index=1)
    failed = Sample(index=3, reward=0.0, loss_mask=[0], response_length=1, remove_sample=True)
    args = arguments(custom_advantage_function_path=PATH, grpo_std_normalization=False)
    raw, found = post_process(args, [*first, *second, plain, failed])
    assert raw == [3.0, 1.0, 1.0, 5.0, 0.0]
    spread: list[Any] = [one.per_token(size) for one, size in zip(found, [6, 3, 4, 2, 1], strict=True)]  # type: ignore[attr-defined]
    assert spread == [[2.0, 2.0, 2.0, 2.0, 2.0, 0.0], [-2.0] * 3, [-2.0] * 4, [5.0, 5.0], [0.0]]


def test_advantages_reach_the_training_process_as_tensors(monkeypatch: pytest.MonkeyPatch):
    cut = ModuleType("slime.backends.megatron_utils.cp_utils")
    cut.slice_log_prob_with_cp = lambda values, total, response: values[: response - 1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, cut.__name__, cut)
    sent = pickle.loads(pickle.dumps(TurnAdvantages([(1, 1.0), (3, -1.0)])))
    assert sum([sent, 1]) == 1.0
    data = {"kl": [torch.zeros(4)], "rewards": [sent], "total_lengths": [9], "response_lengths": [4]}
    turn_advantages(None, data)
    assert data["advantages"][0].tolist() == [1.0, 1.0, -1.0]
    assert data["returns"][0].dtype == torch.float32


def test_trainer_without_the_hook_is_refused():
    with pytest.raises(ConfigError, match="turn_advantages"):
        post_process(arguments(), rollout(0, 1.0, datum((1, 1.0))))


def test_equal_rewards_of_different_turns_keep_their_group():
    group = [*rollout(0, 1.0, datum((1, 1.0), (2, 0.0))), *rollout(1, 1.0, datum((1, 0.0), (2, 1.0)))]
    assert has_signal(arguments(), group) is True
    for sample in group:
        del sample.metadata[TURNS]
    assert has_signal(arguments(), group) is False
