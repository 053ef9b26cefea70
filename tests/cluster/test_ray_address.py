"""A run joins the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import pytest
from orl_cluster.launch.machine.ray_cluster import ray_address


@pytest.mark.parametrize(
    ("given", "found"),
    [("local", ""), ("10.0.0.7:6379", "10.0.0.7:6379"), ("http://head.example:8265", "head.example:6379")],
)
def test_named_cluster_is_joined(given: str, found: str) -> None:  # shows B28
    assert ray_address({"RAY_ADDRESS": given}) == found
    assert ray_address({}) == ""
