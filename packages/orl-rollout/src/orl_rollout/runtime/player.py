"""Players of a rollout: the built-in loop, or an agent of the user's, by the package behind the group `orl.agents`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Protocol, cast

from orl_core.config import AgentConfig, RunConfig
from orl_core.errors import ConfigError
from orl_core.render import Renderer
from orl_core.trajectory import RolloutSpec, Trajectory

from orl_rollout.loop.clock import Pause, give_up, never
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_rollout.loop.session import Session

GROUP = "orl.agents"


class Player(Protocol):
    """Plays one episode; `rollout` is one, with its promises (law L2)."""

    async def __call__(
        self,
        job: RolloutSpec,
        *,
        session: Session,
        renderer: Renderer,
        engine: Engine,
        stopped: Callable[[], bool] = never,
        pause: Pause = give_up,
    ) -> Trajectory:
        """Play one episode of `job.task` and return what happened, whatever happened."""
        ...


def load_player(config: RunConfig) -> Player:
    """Return the player that the configuration names.

    Raises:
        ConfigError: the agent is not named or cannot be loaded, or no package is installed that plays with agents.
    """
    agent = config.agent_config
    if agent is None:
        return rollout
    if not agent.name:
        raise ConfigError("`agent` names no `function` and no `command`. Name one: only `orl gateway` needs none")
    entry = next(iter(entry_points(group=GROUP)), None)
    if entry is None:
        raise ConfigError("`agent` needs the package orl-gateway, which is not in this environment. Install it")
    return cast("Callable[[AgentConfig], Player]", entry.load())(agent)
