"""One rollout of the laws' tests, with a scripted engine and session."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

from orl_core.limits import Limits
from orl_core.render import Renderer
from orl_core.task import Task
from orl_core.trajectory import RolloutSpec, Trajectory
from orl_rollout.loop.loop import rollout
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit import one_loop
from tests.kit.tokenizers import renderer_of

RENDERER = renderer_of()
TASK = Task(env_name="A/B", deployment_name="A/B")


def play(
    engine: ScriptedEngine,
    session: ScriptedSession,
    limits: Limits,
    stopped: Callable[[], bool],
    renderer: Renderer = RENDERER,
) -> Trajectory:
    """One rollout on a loop of its own; no task may be left behind, and no warning."""

    async def main() -> Trajectory:
        job = RolloutSpec(task=TASK, rollout_id="k", limits=limits)
        trajectory = await rollout(job, session=session, renderer=renderer, engine=engine, stopped=stopped)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return trajectory

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return one_loop.run(main())
