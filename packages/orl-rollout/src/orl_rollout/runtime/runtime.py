"""The runtime of one event loop: each rollout is played, judged, recorded and counted once.

Trainers run several event loops in one process and kill it. So clients belong to a loop (a Runtime for each); renderer,
journal and circuit breaker belong to the process (`stack.SharedState`). A rollout is on disk when `play` returns. The
module knows no trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol, cast

from msgspec import Struct, field, structs
from orl_core.config import AgentConfig, RunConfig
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.render import Renderer
from orl_core.task import PLAIN, Task
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory

from orl_rollout.edge.secrets import Scrubber, refuse_repeats, unset_in
from orl_rollout.episodes.journal import Journal
from orl_rollout.logs import keep_out, logger_of
from orl_rollout.loop.clock import Pause, give_up, never
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_rollout.loop.session import Session
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.admission import AdaptiveLimiter, LimitedSession, Ticket
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.judging import Judging
from orl_rollout.tasks.file import PlainSession

AGENTS = "orl.agents"  # the group of entry points that play with agents of the user
logger = logger_of("orl")


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
    entry = next(iter(entry_points(group=AGENTS)), None)
    if entry is None:
        raise ConfigError("`agent` needs the package orl-gateway, which is not in this environment. Install it")
    return cast("Callable[[AgentConfig], Player]", entry.load())(agent)


class Environments(Protocol):
    """The source of sessions: `orl_rollout.openreward.OpenRewardClient`, or a fake in three lines."""

    def session(self, task: Task) -> Session:
        """Make a session for `task`, not yet open."""
        ...


class RolloutRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout as a trainer asks for it. `rollout_id` is unique in the run.

    `sampling` wins over the configuration: its `max_new_tokens` replaces `turn_tokens`. `context_tokens` limits prompt
    and response together. `evaluation` and `step` are recorded.
    """

    task: Task
    rollout_id: str
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context_tokens: int | None = None
    evaluation: bool = False
    step: int = 0


class Runtime:
    """Plays tasks on the current event loop.

    `journal` may be None: nothing is recorded then. It and `breaker` belong to the process and are shared by all its
    Runtimes. `player` replaces the one that the configuration names.

    Raises:
        ConfigError: a secret is in a part that is written to files, the reward function or the agent
            cannot be loaded, or the renderer cannot do what the configuration asks for.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        renderer: Renderer,
        client: Environments,
        breaker: CircuitBreaker,
        journal: Journal | None = None,
        player: Player | None = None,
    ) -> None:
        self._config = config
        self._renderer = renderer
        self._client = client
        self._breaker = breaker
        refuse_repeats(config)
        scrubber = Scrubber.of(config)
        keep_out(scrubber)
        for line in unset_in(config):
            logger.warning("%s", line)
        check_renderer(config, renderer)
        self._judging = Judging(config, scrubber, journal)
        self._player = player or load_player(config)
        self._may_replay = not (
            config.agent_config and config.agent_config.command
        )  # what a program did outside stays done
        self._unrewarded: set[str] = set()  # environments that were warned about
        self._limiters = {
            name: AdaptiveLimiter(config.environment(name).max_concurrency, name=name, patience=config.rollout.patience)
            for name in (*config.environments, PLAIN)
        }

    async def play(
        self, request: RolloutRequest, engine: Engine, *, stopped: Callable[[], bool] = never, pause: Pause = give_up
    ) -> Outcome:
        """Play a task and return its outcome. `stopped` is the trainer's abort flag, `pause` that of `Clock`.

        A rollout whose session was lost with its connection is played once more, in a fresh session, unless the
        configuration forbids it or a program plays. The journal keeps the first attempt as one that was replaced.

        Raises:
            RunAborted: too many rollouts of the run end in ERROR, they cannot be recorded, or too many calls of the
                reward function never came back.
            ConfigError: the task belongs to an environment that the configuration does not name.
        """
        task = request.task
        environment = self._config.environment(task.env_name)
        job = RolloutSpec(
            task=task,
            rollout_id=request.rollout_id,
            limits=self._config.limits(task.env_name, context_tokens=request.context_tokens),
            sampling=dict(request.sampling),
            evaluation=request.evaluation,
        )
        limiter = self._limiters[task.env_name]
        ticket = limiter.ticket()
        trajectory = await self._play(job, engine, ticket, stopped, pause)
        replayed = self._may_replay and environment.replay and ticket.lost_midway(trajectory.error) and not stopped()
        if replayed:
            limiter.warnings.warn(f"{trajectory.error}: rollouts of {task.env_name} are played again")
            await self._judging.judge(trajectory, environment, step=request.step, replaced=True)
            trajectory = await self._play(job, engine, ticket, stopped, pause)
        outcome = await self._judging.judge(trajectory, environment, step=request.step)
        outcome = structs.replace(self._check_rewarded(outcome), replayed=replayed)
        self._breaker.saw(outcome.trajectory.error, lost_since=ticket.lost_since(trajectory.error))
        return outcome

    def _check_rewarded(self, outcome: Outcome) -> Outcome:
        """Warn once for each environment that ended an episode without a reward, unless a comparison rewards it."""
        if not outcome.unrewarded:
            return outcome
        if self._config.group_reward.mode != "off":
            return structs.replace(outcome, unrewarded=False)
        name = outcome.trajectory.job.task.env_name
        if name not in self._unrewarded:
            self._unrewarded.add(name)
            logger.warning(
                "%s: an episode finished and none of its results carried a reward, so it counts as 0. Return a finite "
                "`reward` with the result that ends an episode",
                name,
            )
        return outcome

    def _session(self, task: Task) -> Session:
        return PlainSession() if task.env_name == PLAIN else self._client.session(task)

    async def _play(
        self, job: RolloutSpec, engine: Engine, ticket: Ticket, stopped: Callable[[], bool], pause: Pause
    ) -> Trajectory:
        """Play within the environment's concurrency; a bug of ours becomes a trajectory that does not train.

        Where the server was busy or away, nothing was begun: the rollout waits for its turn and begins.
        """
        session = self._session(job.task)
        try:
            with boundary(OrlError, "a bug in orl"):
                while True:
                    async with ticket:
                        if stopped():
                            return Trajectory(job=job, stop_reason=StopReason.ABORTED)
                        limited = LimitedSession(session, ticket)
                        trajectory = await self._player(
                            job,
                            session=limited,
                            renderer=self._renderer,
                            engine=engine,
                            stopped=stopped,
                            pause=partial(ticket.lent, pause),
                        )
                    if not await ticket.again(stopped):
                        return trajectory
                    session = self._session(job.task)
        except OrlError as bug:
            logger.error("rollout %s of %s: %s", job.rollout_id, job.task.key, bug, exc_info=bug)
            self._breaker.saw_bug(str(bug))
            return Trajectory(job=job, stop_reason=StopReason.ERROR, error=str(bug))


def check_renderer(config: RunConfig, renderer: Renderer) -> None:
    """Refuse what cannot be done with this model's wire format.

    Raises:
        ConfigError: `thinking: strip`, and no control ids that delimit the reasoning.
    """
    if config.thinking == "strip" and not renderer.strips:
        raise ConfigError(
            f"`thinking: strip` needs a vocabulary that holds the tags of the reasoning (for `{renderer.tool_format}`: "
            f"{' and '.join(renderer.thinking)}) as tokens, and this one does not: use `keep`"
        )
