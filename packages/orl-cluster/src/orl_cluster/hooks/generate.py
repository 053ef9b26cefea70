"""One rollout inside a trainer: from the row in its Sample to the Sample filled, or a list of them.

The trainer's own comes in as a Host. An exception that left here would end most jobs, so only errors of ours do, and
only those that end the run: the breaker's, and that of a configuration which cannot be played. They leave their reason
with the run (`run_of`), for a host that goes on all the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orl_core.datum import Datum
from orl_core.errors import ConfigError, EngineError, OrlError, boundary
from orl_core.trajectory import Generation
from orl_rollout.logs import logger_of, shown
from orl_rollout.results.outcome import Outcome

from orl_cluster.hooks.group_scores import offer
from orl_cluster.hooks.rows import is_task, task_of
from orl_cluster.hooks.samples import begin_anew, fail, fill, split
from orl_cluster.hooks.worker import Loop, context_tokens, run_of, this_loop

logger = logger_of("orl")


class Host(Protocol):
    """What a trainer has of its own in a rollout."""

    args: Any

    def payload(self, *, evaluation: bool) -> Mapping[str, Any]:
        """What its engines are asked for in every request, beside ids and logprobs."""
        ...

    def step(self) -> int | None:
        """The number of the batch that is played, from 0; None where the trainer does not say.

        Then it is the one after the latest that this process has logged: exact in a run that plays one batch after the
        other, but the first of a run that was resumed counts as its first of all.
        """
        ...

    def loses_lists(self) -> str:
        """The option under which the trainer cannot keep several samples of a rollout for later; empty if none."""
        ...

    def key(self, sample: Any) -> str | None:
        """What routes the requests of `sample` to one engine, where the trainer has a name for it."""
        ...

    def aborted(self) -> bool:
        """The trainer's own abort flag."""
        ...

    def complete(self, sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
        """Write into `sample`, filled from `datum`, what only this trainer wants: what it replays of its `generations`.

        Without a datum the sample failed: it needs the same fields, of the same shapes, all the same. Nothing of an
        evaluation is replayed.
        """
        ...

    async def play(self, sample: Any, sampling: Mapping[str, Any]) -> None:
        """Let the trainer play a row of its own; its reward model scores it afterwards. Raises whatever it raises."""
        ...


async def generate(host: Host, sample: Any, sampling: Mapping[str, Any], *, evaluation: bool) -> Any:
    """Play the task of `sample.metadata` and return `sample`, its per-token fields set anew.

    Where reasoning is stripped, a list is returned, also of one sample: one for each datum, sharing `rollout_id`;
    trainers take lists or samples of a run, not both. An evaluation is one sample, that of the last turns, so that it
    counts once. A row that is no task of orl is played by the trainer.

    Status: FINISHED is COMPLETED; MAX_TURNS and MAX_TOKENS are TRUNCATED; TIMEOUT is TRUNCATED and removed; ABORTED is
    ABORTED (a clean restart later); ERROR is FAILED, removed, reward 0.0. `remove_sample` keeps the loss off what does
    not train.

    Raises:
        RunAborted: too many rollouts end in ERROR.
        ConfigError: no configuration, a row that is no task, or an option that loses lists where reasoning is stripped.
        OrlError: a bug of ours that a failed sample could not bear, or rollouts cannot be started.
    """
    try:
        with boundary(OrlError, "a bug in orl"):
            samples = await _played(host, sample, sampling, evaluation=evaluation)
    except OrlError as fault:
        run_of(host.args).ended = shown(str(fault))
        raise
    return samples


async def _played(host: Host, sample: Any, sampling: Mapping[str, Any], *, evaluation: bool) -> Any:
    loop = await this_loop(host.args, host.payload(evaluation=evaluation), evaluation=evaluation)
    run = run_of(host.args)
    run.stripped = stripped = loop.process.config.thinking == "strip"
    if stripped and (option := host.loses_lists()):
        raise ConfigError(f"`thinking: strip` makes several samples of a rollout, which `{option}` cannot keep")
    if not is_task(sample):
        await _by_trainer(host, sample, sampling, loop)
        return [sample] if stripped else sample
    batch = host.step()
    step = run.batches + (not evaluation) if batch is None else loop.process.step(batch, evaluation=evaluation)
    outcome = await loop.runtime.play(
        task_of(sample),
        key=host.key(sample) or uuid.uuid4().hex,
        engine=loop.engine,
        sampling=sampling,
        context_tokens=context_tokens(host.args, evaluation=evaluation),
        evaluation=evaluation,
        step=step,
        stopped=host.aborted,
    )
    samples = _written(host, sample, outcome, loop, evaluation=evaluation)
    return samples if stripped else sample


def _written(host: Host, sample: Any, outcome: Outcome, loop: Loop, *, evaluation: bool) -> list[Any]:
    """The samples of a rollout, the trainer's own fields too. Where one cannot be written, one that failed.

    Raises:
        RunAborted: it could not for the third time, or too many rollouts end in ERROR.
    """
    try:
        with boundary(OrlError, "writing the sample"):
            samples = _filled(sample, outcome, loop, evaluation=evaluation)
            if not evaluation:
                for one, datum in zip(samples, outcome.data or (None,), strict=True):
                    generations = [made for made in datum.generations if made.ids] if datum else []
                    host.complete(one, datum, generations)
    except OrlError as fault:
        text = f"row {sample.index}: {fault}"
        logger.error("%s", text)
        _fail(host, sample)
        breaker = loop.process.breaker
        (breaker.saw_late if isinstance(fault, EngineError) else breaker.saw_bug)(text)
        return [sample]
    return samples


def _filled(sample: Any, outcome: Outcome, loop: Loop, *, evaluation: bool) -> list[Any]:
    config, text_of = loop.process.config, loop.process.tokenizer.decode
    compared = config.group_reward.mode != "off" and not evaluation
    offer(sample, outcome.trajectory if compared and outcome.trajectory.trains else None)
    if config.thinking == "strip":
        return split(sample, outcome, text_of=text_of, evaluation=evaluation)
    fill(sample, outcome, text_of=text_of)
    return [sample]


async def _by_trainer(host: Host, sample: Any, sampling: Mapping[str, Any], loop: Loop) -> None:
    """Let the trainer play a row that is a plain prompt.

    Raises:
        RunAborted: too many rollouts end in ERROR.
        ConfigError: there is no trainer.
    """
    error = ""
    try:
        with boundary(OrlError, "the trainer's own generate"):
            if sample.remove_sample:
                begin_anew(sample)
            await host.play(sample, dict(sampling))
    except ConfigError:
        raise
    except OrlError as fault:
        error = f"row {sample.index}: {fault}"
        logger.warning("%s", error)
        _fail(host, sample)
    loop.process.breaker.saw(error)


def _fail(host: Host, sample: Any) -> None:
    fail(sample)
    host.complete(sample, None, ())
