"""Watches one attempt of a trainer for what ends without an error: weights that do not arrive, and a hang."""

from __future__ import annotations

import time

from orl_core.errors import OrlError
from orl_rollout.run_folder.logprob_drift import DIFFERENCE, LogprobDrift

from orl_cluster.launch.command.command import Command
from orl_cluster.launch.command.critic import critic_folder
from orl_cluster.launch.command.engine_weights import samples_fresh
from orl_cluster.launch.run.stall import StallWatch


class Watch:
    """The judges of one attempt. `judge` may be called on another thread than `check`."""

    def __init__(self, command: Command) -> None:
        request = command.request
        self._command = command
        self._drift = LogprobDrift(request.trainer.max_logprob_difference)
        saved = (request.save, critic_folder(str(request.save)))
        seconds = request.cluster.stall_timeout
        self._stall = StallWatch(request.installation.trainer, request.run.folder, saved, seconds, time.monotonic())

    def judge(self, numbers: dict[str, float]) -> None:
        """Take the numbers of a step."""
        asynchronous = self._command.request.cluster.asynchronous
        if DIFFERENCE in numbers and samples_fresh(self._command.argv, asynchronous=asynchronous):
            self._drift.add(numbers[DIFFERENCE])

    def check(self) -> None:
        """Raise an OrlError if engines do not sample from the weights that train, or the trainer hangs."""
        self.check_weights()
        self._stall.check(time.monotonic())

    def check_weights(self) -> None:
        """Raise an OrlError if the engines do not sample from the weights that train."""
        if self._drift.fault:
            raise OrlError(self._drift.fault)
