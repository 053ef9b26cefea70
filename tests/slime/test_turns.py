"""Turn rewards become slime's advantages of tokens: stored by `generate`, worked out for groups, cut by slime."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from orl_cluster.hooks.turns import TURNS, TurnAdvantages, store_turns
from orl_core.datum import Datum
from orl_core.errors import ConfigError
from orl_slime.advantages import turn_advantages
from orl_slime.hooks import has_signal, post_process

from tests.slime.miniature import Sample, arguments

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
    sent = pickle.loads(pickle.dumps(TurnAdvantages(0.5, [(1, 1.0), (3, -1.0)])))
    assert sum([sent, 1]) == 1.5
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
