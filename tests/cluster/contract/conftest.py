"""Fixtures of the contract suite: an OpenReward server, a checkpoint, and the state of a worker that has just begun."""

from __future__ import annotations

from tests.miles.conftest import checkpoint, environment, fresh_process, hosted
from tests.two_pythons.fixtures import cluster, orl, python, pythons, working

__all__ = ["checkpoint", "cluster", "environment", "fresh_process", "hosted", "orl", "python", "pythons", "working"]
