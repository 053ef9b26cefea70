"""The identity of a rollout, in the Samples of different versions of slime."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from orl_cluster.hooks.group_scores import rollout_of


class WriteOnly(SimpleNamespace):
    """The Sample of slime 0.3.0: `rollout_id` can be set and not read."""

    @property
    def rollout_id(self) -> int:
        raise AttributeError("set group_id")


@pytest.mark.parametrize(
    "sample", [WriteOnly(index=3), SimpleNamespace(index=3), SimpleNamespace(index=3, rollout_id=None)]
)
def test_index_is_the_identity_where_there_is_no_other(sample: Any) -> None:  # shows G13
    assert rollout_of(sample) == rollout_of(copy.copy(sample)) == 3


def test_identity_of_split_rollouts_is_theirs() -> None:
    assert rollout_of(SimpleNamespace(index=3, rollout_id=1)) == 1
