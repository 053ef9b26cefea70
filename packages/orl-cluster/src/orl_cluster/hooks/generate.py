"""One rollout inside a trainer: from the row in its Sample to the filled Sample, or a list of them.

The trainer comes in as a Host. An exception that leaves this module ends most jobs, so only errors of ours do, and only
those that end the run: the circuit breaker's, and that of a configuration that cannot be played. They are also kept in
the run's state (`run_of`), for a trainer that swallows exceptions.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from orl_core import ConfigError, Datum, EngineError, Generation, OrlError, boundary
from orl_rollout import Outcome, RolloutRequest
from orl_rollout.logs import logger_of, shown
from orl_rollout.loop.clock import Pause, give_up

from orl_cluster.hooks.samples import (
    fill,
    is_task,
    mark_aborted,
    mark_failed,
    reset_sample,
    split,
    store_conversation,
    store_turns,
    task_of,
)
from orl_cluster.hooks.worker import KeptRollout, LoopClients, clients_of, context_tokens, run_of

logger = logger_of("orl")
KEPT = "orl_kept"  # in a sample's metadata: the name of its rollout that was put aside


class Host(Struct, frozen=True, kw_only=True):
    """A trainer's call for one rollout: facts, and three functions of the trainer.

    Every request to the engines has the fields of `payload`. `batch` is the number of the batch, from 0; None if the
    trainer does not say. `routing_key` sends the requests of the rollout to one engine. `loses_lists` is the option
    under which the trainer cannot keep several samples of a rollout, `--partial-rollout` aside; empty if none.

    `aborted` reads the trainer's abort flag. `complete` writes into a sample, filled from a datum, the fields that only
    this trainer has; without a datum the sample failed, and gets the same fields in the same shapes. Evaluations that
    did not fail skip it. `play` lets the trainer play a row of its own and raises whatever the trainer raises.
    """

    args: Any
    evaluation: bool
    payload: Mapping[str, Any]
    batch: int | None = None
    routing_key: str | None = None
    loses_lists: str = ""
    aborted: Callable[[], bool]
    complete: Callable[[Any, Datum | None, Sequence[Generation]], None]
    play: Callable[[Any, Mapping[str, Any]], Awaitable[Any]]


async def generate(host: Host, sample: Any, sampling: Mapping[str, Any]) -> Any:
    """Play the task of `sample.metadata` and return `sample`, its per-token fields set anew.

    Where reasoning is stripped, a list is returned, also of one sample: one for each datum, sharing `rollout_id`;
    trainers take lists or samples of a run, not both. An evaluation is one sample, that of the last turns, so that it
    counts once. A row that is no task of orl is played by the trainer.

    Status: FINISHED is COMPLETED; MAX_TURNS and MAX_TOKENS are TRUNCATED; TIMEOUT is TRUNCATED and removed; ABORTED is
    ABORTED (a clean restart later), and so is a rollout that is put aside (`kept`); ERROR is FAILED, removed, reward
    0.0. `remove_sample` keeps the loss off samples that do not train.

    Raises:
        RunAborted: too many rollouts end in ERROR.
        ConfigError: no configuration, a row that is no task, or an option that loses lists where reasoning is stripped.
        OrlError: a bug of ours that a failed sample could not bear, or rollouts cannot be started.
    """
    try:
        with boundary(OrlError, "a bug in orl"):
            return await _play(host, sample, sampling)
    except OrlError as fault:
        run_of(host.args).ended = shown(str(fault))
        raise


async def _play(host: Host, sample: Any, sampling: Mapping[str, Any]) -> Any:
    clients = await clients_of(host.args, host.payload, evaluation=host.evaluation)
    run, partial_rollout = run_of(host.args), getattr(host.args, "partial_rollout", False)
    loses_lists = "--partial-rollout" if partial_rollout else host.loses_lists
    if run.stripped and loses_lists:
        setting = clients.worker.config.several_rows
        raise ConfigError(f"{setting} makes several samples of a rollout, which `{loses_lists}` loses")
    if not is_task(sample):
        await _play_by_trainer(host, sample, sampling, clients)
        return [sample] if run.stripped else sample
    play = partial(_outcome, host, sample, sampling, clients)
    masked = getattr(host.args, "mask_offpolicy_in_partial_rollout", False)
    if partial_rollout and not masked and not host.evaluation:  # the trainer asks again, and trains all tokens
        kept = clients.kept.pop(sample.metadata.pop(KEPT, None), None)
        kept = kept if kept and not kept.ended else KeptRollout(play)
        outcome = await kept.proceed()
        if outcome is None:
            return _put_aside(host, sample, kept, clients)
    else:
        outcome = await play(give_up)
    samples = _write(host, sample, outcome, clients)
    return samples if run.stripped else sample


def _put_aside(host: Host, sample: Any, kept: KeptRollout, clients: LoopClients) -> Any:
    """Keep the rollout for the next call with `sample`. Return it with nothing to train until then."""
    _fail(host, sample)
    mark_aborted(sample)
    sample.metadata[KEPT] = name = uuid.uuid4().hex
    clients.kept[name] = kept
    return sample


async def _outcome(host: Host, sample: Any, sampling: Mapping[str, Any], clients: LoopClients, pause: Pause) -> Outcome:
    """Play the task of `sample`. If concurrency is capped, an aborted rollout ends instead of holding a session."""
    run, task = run_of(host.args), task_of(sample)
    request = RolloutRequest(
        task=task,
        rollout_id=host.routing_key or uuid.uuid4().hex,
        sampling=sampling,
        context_tokens=context_tokens(host.args, evaluation=host.evaluation),
        evaluation=host.evaluation,
        step=run.step(host.batch, evaluation=host.evaluation),
    )
    limited = clients.worker.config.environment(task.env_name).max_concurrency is not None
    with run.turns.opened(f"{task.env_name} {request.rollout_id}"):
        return await clients.runtime.play(
            request, clients.engine, stopped=host.aborted, pause=give_up if limited else pause
        )


def _write(host: Host, sample: Any, outcome: Outcome, clients: LoopClients) -> list[Any]:
    """Return the samples of a rollout. If one cannot be written, return one that failed."""
    try:
        with boundary(OrlError, "writing the sample"):
            config, text_of = clients.worker.config, clients.worker.tokenizer.decode
            compared = config.group_reward.mode != "off" and not host.evaluation
            store_conversation(sample, outcome.trajectory if compared and outcome.trajectory.trainable else None)
            if config.several_rows:
                samples = split(sample, outcome, text_of=text_of, evaluation=host.evaluation)
            else:
                fill(sample, outcome, text_of=text_of)
                samples = [sample]
            if config.turn_advantages:
                store_turns(samples, outcome.datums)
            if not host.evaluation:
                for one, datum in zip(samples, outcome.datums or (None,), strict=True):
                    generations = (
                        [generation for generation in datum.generations if generation.token_ids] if datum else []
                    )
                    host.complete(one, datum, generations)
    except OrlError as fault:
        text = f"row {sample.index}: {fault}"
        logger.error("%s", text)
        _fail(host, sample)
        breaker = clients.worker.breaker
        (breaker.saw_late if isinstance(fault, EngineError) else breaker.saw_bug)(text)
        return [sample]
    return samples


async def _play_by_trainer(host: Host, sample: Any, sampling: Mapping[str, Any], clients: LoopClients) -> None:
    """Let the trainer play a row that is a plain prompt."""
    error = ""
    try:
        with boundary(OrlError, "the trainer's own generate"):
            if sample.remove_sample:
                reset_sample(sample)
            await host.play(sample, dict(sampling))
            run_of(host.args).turns.answered()
    except ConfigError:
        raise
    except OrlError as fault:
        error = f"row {sample.index}: {fault}"
        logger.warning("%s", error)
        _fail(host, sample)
    clients.worker.breaker.saw(error)


def _fail(host: Host, sample: Any) -> None:
    mark_failed(sample)
    host.complete(sample, None, ())
