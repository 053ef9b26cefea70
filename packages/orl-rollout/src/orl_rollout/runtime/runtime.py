"""The runtime of one event loop: each rollout is played, judged, recorded and counted.

Trainers run several event loops in one process and kill it. So clients belong to a loop (a Runtime for each); renderer,
journal and circuit breaker belong to the process (`stack.SharedState`). A rollout is on disk when `play` returns. The
module knows no trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Protocol

from msgspec import structs
from orl_core.config import EnvironmentConfig, RunConfig
from orl_core.errors import ConfigError, OrlError, RunAborted, boundary
from orl_core.limits import Budgets, Limits
from orl_core.messages import TextBlock
from orl_core.render import Renderer
from orl_core.task import Task
from orl_core.text import leaves_in
from orl_core.tools import thinking
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory

from orl_rollout.journal.journal import Journal
from orl_rollout.logs import keep_out, logger_of
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import never, rollout
from orl_rollout.loop.session import Session
from orl_rollout.results.outcome import Outcome, cleared, load_reward, outcome_of
from orl_rollout.runtime.admission import AdaptiveLimiter, LimitedSession
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.secrets.secrets import Scrubber, refuse_repeats, resolve_secrets

logger = logger_of("orl")

INLINE_CHARACTERS = 1 << 15  # of a rollout that are searched for secrets on the event loop, in some milliseconds
LONGEST_ERROR = 2_000  # characters of a trajectory's error


class Environments(Protocol):
    """The source of sessions: `orl_rollout.openreward.OpenRewardClient`, or a fake in three lines."""

    def session(self, task: Task) -> Session:
        """Make a session for `task`, not yet open."""
        ...


class Runtime:
    """Plays tasks on the current event loop.

    `journal` may be None: nothing is recorded then. It and `breaker` belong to the process and are shared by all its
    Runtimes.

    Raises:
        ConfigError: a secret is missing or stands where it would be written down, the reward function cannot be
            loaded, or the renderer cannot do what the configuration asks for.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        renderer: Renderer,
        client: Environments,
        breaker: CircuitBreaker,
        journal: Journal | None = None,
    ) -> None:
        self._config = config
        self._renderer = renderer
        self._client = client
        self._breaker = breaker
        self._journal = journal
        refuse_repeats(config)
        self._scrubber = Scrubber.of(config)
        keep_out(self._scrubber)
        for name in config.environments:
            resolve_secrets(config, name)
        check_renderer(config, renderer)
        self._reward = load_reward(config.reward) if config.reward else None
        self._limiters = {
            name: AdaptiveLimiter(environment.max_concurrency) for name, environment in config.environments.items()
        }

    async def play(  # noqa: PLR0913  what a trainer says of one rollout
        self,
        task: Task,
        *,
        key: str,
        engine: Engine,
        sampling: Mapping[str, Any],
        context_tokens: int | None = None,
        evaluation: bool = False,
        step: int = 0,
        stopped: Callable[[], bool] = never,
    ) -> Outcome:
        """Play `task` once and return its outcome; total, but for cancellation and the breaker.

        `key` is the rollout's name, unique in the run. `sampling` is the trainer's and wins over the configuration;
        `context_tokens` is its limit for prompt and response together, `stopped` its abort flag. `evaluation` and
        `step` are recorded.

        Raises:
            RunAborted: too many rollouts of the run end in ERROR, or they cannot be recorded.
            ConfigError: the task belongs to an environment that the configuration does not name.
        """
        environment = self._config.environment(task.env_name)
        limits = limits_of(self._config, task.env_name, context_tokens=context_tokens)
        job = RolloutSpec(task=task, rollout_id=key, limits=limits, sampling=dict(sampling), evaluation=evaluation)
        trajectory = await self._play(job, self._client.session(task), engine, stopped)
        outcome = _with_short_error(await self._clear(await self._judge(trajectory, environment)))
        if self._journal is not None:
            try:
                await self._journal.record(outcome, step=step)
            except OrlError as exc:  # it must not count, and the next ones could not be recorded either
                raise RunAborted(f"nothing can be recorded any more: {exc}") from exc
        self._breaker.saw(outcome.trajectory.error)
        return outcome

    async def _judge(self, trajectory: Trajectory, environment: EnvironmentConfig) -> Outcome:
        """Judge the trajectory; a reward function of the user's may take its time, so it runs on a thread."""
        if self._reward is None:
            return outcome_of(trajectory, environment)
        return await asyncio.to_thread(outcome_of, trajectory, environment, self._reward)

    async def _clear(self, outcome: Outcome) -> Outcome:
        """Take out of `outcome` what echoes a secret, before anybody sees it; a long text is searched on a thread.

        The text may be long where its ids are few, as a result is cut before it becomes ids.
        """
        if not _is_long(outcome.trajectory):
            return cleared(outcome, self._scrubber)
        return await asyncio.to_thread(cleared, outcome, self._scrubber)

    async def _play(
        self, job: RolloutSpec, session: Session, engine: Engine, stopped: Callable[[], bool]
    ) -> Trajectory:
        """Play within the environment's concurrency; a bug of ours becomes a trajectory that does not train.

        Where the server had no room for the session, nothing was begun: the rollout waits for its turn and begins.
        """
        ticket = self._limiters[job.task.env_name].ticket()
        try:
            with boundary(OrlError, "a bug in orl"):
                while True:
                    async with ticket:
                        if stopped():
                            return Trajectory(job=job, stop_reason=StopReason.ABORTED)
                        limited = LimitedSession(session, ticket)
                        trajectory = await rollout(
                            job, session=limited, renderer=self._renderer, engine=engine, stopped=stopped
                        )
                    if not await ticket.again(stopped):
                        return trajectory
                    session = self._client.session(job.task)
        except OrlError as bug:
            text = self._scrubber.scrub(str(bug))
            logger.error("rollout %s of %s: %s", job.rollout_id, job.task.key, text, exc_info=bug)
            self._breaker.saw_bug(text)
            return Trajectory(job=job, stop_reason=StopReason.ERROR, error=text)


def _is_long(trajectory: Trajectory) -> bool:
    """Return whether messages and task hold more than INLINE_CHARACTERS, each text counted as one more."""
    blocks = (block for message in trajectory.messages for block in message.content)
    texts = (block.text if isinstance(block, TextBlock) else block.data for block in blocks)
    left = INLINE_CHARACTERS
    for text in chain(texts, (text for _, text in leaves_in(trajectory.job.task.task_spec))):
        left -= len(text) + 1
        if left < 0:
            return True
    return False


def _with_short_error(outcome: Outcome) -> Outcome:
    """Return `outcome` with its error cut to one line. It is scrubbed already, so that no cut can hide a secret."""
    error = outcome.trajectory.error
    if len(error) <= LONGEST_ERROR:
        return outcome
    line = " ".join(error[: 2 * LONGEST_ERROR].split())[:LONGEST_ERROR]
    return structs.replace(outcome, trajectory=structs.replace(outcome.trajectory, error=line))


def check_renderer(config: RunConfig, renderer: Renderer) -> None:
    """Refuse what cannot be done with this model's wire format.

    Raises:
        ConfigError: `thinking: strip`, and no control ids that delimit the reasoning.
    """
    if config.thinking == "strip" and not renderer.strips:
        raise ConfigError(
            f"`thinking: strip` needs a vocabulary that holds the tags of the reasoning (for `{renderer.tool_format}`: "
            f"{' and '.join(thinking(renderer.tool_format))}) as tokens, and this one does not: use `keep`"
        )


def limits_of(config: RunConfig, env_name: str, *, context_tokens: int | None = None) -> Limits:
    """Return the limits of a rollout in `env_name`: the configuration's, the context as the trainer has it."""
    environment = config.environments[env_name]
    budgets = {name: getattr(config.rollout, name) for name in Budgets.__struct_fields__}
    budgets["context_tokens"] = context_tokens or config.rollout.context_tokens
    budgets["call_timeout"] = environment.call_timeout or config.rollout.call_timeout
    return Limits(
        **budgets,
        max_turns=environment.max_turns,
        rollout_tokens=config.rollout.rollout_tokens or budgets["context_tokens"],
        parallel_calls=environment.parallel_calls,
        strip_reasoning=config.thinking == "strip",
    )
