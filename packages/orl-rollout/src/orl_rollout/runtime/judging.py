"""Judging: a trajectory is on disk, then the user's function is asked about it, then its outcome is on disk.

A function may hang: a judge without a timeout, a loop in a parser. Its deadline counts from its start. A plain one runs
on a daemon thread of its own, an `async def` on the event loop. Python cannot end a thread, so a call that does not
come back is left behind, and its place goes to the next one. The module knows neither trainers nor players.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

from msgspec import structs
from orl_core.config import EnvironmentConfig, RunConfig
from orl_core.errors import RunAborted
from orl_core.trajectory import StopReason, Trajectory

from orl_rollout.edge.interrupt import on_thread
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.episodes.journal import Journal
from orl_rollout.results.outcome import UNJUDGED, Outcome, RewardFunction, load_reward, outcome_of

REWARD_SECONDS = 300.0  # for a call, unless the configuration says how many
ASYNC_CALLS = 64  # of an `async def` at once
CANCEL_SECONDS = 1.0  # that a cancelled `async def` may take to end


class Judging:
    """Judges and records the trajectories of one event loop. `journal` may be None: nothing is recorded then.

    Raises:
        ConfigError: the reward function cannot be loaded.
    """

    def __init__(self, config: RunConfig, scrubber: Scrubber, journal: Journal | None) -> None:
        self._reward = load_reward(config)
        self._scrubber = scrubber
        self._journal = journal
        limits = config.rollout
        self._seconds = limits.reward_timeout or min(REWARD_SECONDS, limits.rollout_timeout)
        usual = ASYNC_CALLS if self._reward and self._reward.is_async else (os.cpu_count() or 1) + 4
        self._most = limits.reward_concurrency or usual
        self._places = asyncio.Semaphore(self._most)
        self._left: list[Any] = []  # futures of late calls that have not come back

    async def judge(
        self,
        trajectory: Trajectory,
        environment: EnvironmentConfig,
        *,
        step: int | None = None,
        replaced: bool = False,
        recorded: bool = True,
    ) -> Outcome:
        """Return the outcome of `trajectory`, on disk if it is to be `recorded`.

        What was sampled is there before the function is asked. `step` and `replaced` as in `Journal.record`.

        Raises:
            RunAborted: it cannot be recorded, or too many calls of the function never came back.
        """
        reward, kept, journal = self._reward, None, self._journal if recorded else None
        if reward is not None and trajectory.stop_reason not in UNJUDGED:
            if journal is not None:
                kept = await journal.keep(await self._unjudged(trajectory), step)
            async with self._places:
                trajectory, reward = await self._ask(reward, trajectory, environment)
        outcome = await asyncio.to_thread(outcome_of, trajectory, environment, self._scrubber, reward)
        if journal is not None:
            await journal.record(outcome, step=step, replaced=replaced, kept=kept)
        return outcome

    async def _unjudged(self, trajectory: Trajectory) -> Outcome:
        """Return what is on disk until `trajectory` is judged: cleared of secrets, and counted nowhere."""
        cleared = await asyncio.to_thread(self._scrubber.cleared, trajectory)
        error = f"not judged; it ended with {trajectory.ending}"
        cleared = structs.replace(cleared, stop_reason=StopReason.ABORTED, stop_detail=None, error=error)
        return Outcome(trajectory=cleared, reward=0.0, success=False, datums=())

    async def _ask(
        self, reward: RewardFunction, trajectory: Trajectory, environment: EnvironmentConfig
    ) -> tuple[Trajectory, RewardFunction]:
        """Return the trajectory and the function that knows its answer. It is in ERROR if the answer is late.

        Raises:
            RunAborted: as many late calls as may run at once have not come back.
        """
        if reward.is_async:
            call = answer = asyncio.ensure_future(reward.answer(trajectory, environment))
        else:
            what = f"the reward function `{reward.name}`"
            work = partial(reward.call, trajectory, environment)
            call = await asyncio.to_thread(on_thread, work, what)  # a start waits until the thread runs
            answer = asyncio.wrap_future(call)
        try:
            done, _ = await asyncio.wait({answer}, timeout=self._seconds)
        finally:
            answer.cancel()
        if done:
            return trajectory, structs.replace(reward, function=lambda _: answer.result(), takes_settings=False)  # pyright: ignore[reportUnknownLambdaType]
        await asyncio.wait({answer}, timeout=CANCEL_SECONDS)
        self._left = [one for one in (*self._left, call) if not one.done()]
        late = f"the reward function `{reward.name}` did not return in {self._seconds:g} s (`rollout.reward_timeout`)"
        if len(self._left) >= self._most:
            raise RunAborted(f"{late} in {len(self._left)} calls, which still run. Give what it waits for a timeout")
        return structs.replace(trajectory, stop_reason=StopReason.ERROR, stop_detail=None, error=late), reward
