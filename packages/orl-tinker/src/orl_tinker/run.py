"""A run on the server: its schedule, plan and course, and the policy that it trains.

The policy is adapters on the server, updated from rows, the engine that samples with them, and checkpoints. A
checkpoint is a path on the server, and what a run that continues it must share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec import Struct, structs
from orl_core.config import RunConfig, TrainerConfig
from orl_core.errors import ConfigError, EngineAnswerError, EngineRefused, OrlError, boundary
from orl_core.estimators import ESTIMATORS
from orl_core.task import Task
from orl_core.trajectory import Generation
from orl_rollout.edge import interrupt
from orl_rollout.logs import say
from orl_rollout.loop.clock import postpone
from orl_rollout.run_folder.checkpoint import Checkpoint, lasting_name, write_note
from orl_rollout.run_folder.config_file import write_object
from orl_rollout.run_folder.contract import Plan, Run, refuse_workers
from orl_rollout.run_folder.judges import DIFFERENCE
from orl_rollout.run_folder.metrics_log import with_common_names
from orl_rollout.run_folder.tracking import Report, reporting
from orl_rollout.training import resume
from orl_rollout.training.course import Course, OpenPlayer, Record, Schedule, plan_of, runtime_of, schedule_of
from orl_rollout.training.rows import Row, trained_ids
from tinker import AdamParams, Datum, ForwardBackwardOutput, ModelInput, SampledSequence, SamplingParams

from orl_tinker.adapters import KEY, Adapters, has_key
from orl_tinker.options import DEFAULTS, NAME, own_options

PACKAGES = ("tinker", "openreward", "orl-core", "orl-rollout", "orl-tinker")
STATE = "orl_tinker.json"
SCHEME = "tinker:/"  # a path of the server: its second slash is lost if it was taken for a folder


class Saved(Struct, frozen=True, kw_only=True):
    """A checkpoint at `path` of the server, after `step` steps of a training that began with `model`."""

    path: str
    step: int = 0
    model: str = ""
    order: dict[str, Any] = {}


def order_of(config: RunConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the settings that a run over `tasks` shares with the one that continues it.

    `config` has no default left.
    """
    trainer, own = config.trainer, own_options(config.trainer)
    optimizer = {
        name: getattr(trainer, name) for name in ("lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")
    }
    return {**resume.order_of(trainer, tasks), **optimizer, "lora_rank": own.lora_rank, "loss_fn": own.loss_fn}


def saved_in(config: RunConfig) -> Saved | None:
    """Return the checkpoint that `trainer.load` names; None if a run begins anew.

    Raises:
        ConfigError: there is none of this trainer.
    """
    load = config.trainer.load
    if load is None:
        return None
    if load.startswith(SCHEME):
        return Saved(path=f"{NAME}://{load.removeprefix(SCHEME).lstrip('/')}", model=config.trainer.model or "")
    file = Path(load).expanduser() / STATE
    if not file.is_file():
        raise ConfigError(f"--load {load}: no checkpoint of {NAME} is there. Give the folder of such a run")
    with boundary(ConfigError, f"reading {file}"):
        return msgspec.json.decode(file.read_bytes(), type=Saved)


def write_checkpoint(folder: Path, saved: Saved) -> None:
    """Write the checkpoint into `folder`. It is whole at each moment.

    Raises:
        OrlError: it cannot be written.
    """
    model = lasting_name(saved.model)
    with boundary(OrlError, f"writing {folder}"):
        folder.mkdir(exist_ok=True)
        write_object(folder / STATE, saved)
        write_note(folder, Checkpoint(format="server", trainer=NAME, model=model, tokenizer=model, step=saved.step))


NAMES = {"loss:sum": "loss", "unclipped_grad_l2:mean": "grad_norm"}
LOOK_SECONDS = 0.5  # between two looks for an answer
_IGNORED = frozenset({"no_stop_trim", "skip_special_tokens"})  # the server neither trims nor decodes
_TAKEN = {"max_new_tokens", "stop_token_ids", "sampling_seed", "temperature", "top_p", "top_k"}
Sample = Callable[[ModelInput, SamplingParams], Awaitable[SampledSequence]]


class TinkerEngine:
    """`orl_rollout.loop.engine.Engine` over `sample`. `weight_version` goes into every Generation.

    The SDK repeats requests by itself. Other people's work may be before ours in the server's queue, so no deadline
    counts the first `patience` seconds of a request.
    """

    def __init__(self, sample: Sample, patience: float) -> None:
        self._sample = sample
        self._patience = patience
        self.weight_version = ""

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`.

        Raises:
            EngineError: a parameter is unknown, the server failed, or its answer cannot be trusted.
        """
        started, version = time.monotonic(), self.weight_version
        sample = self._sample(ModelInput.from_ints(list(ids)), sampling_params(sampling))
        sequence = await self._awaited(asyncio.ensure_future(sample))
        if sequence.logprobs is None:
            raise EngineAnswerError(f"the server returned {len(sequence.tokens)} ids without logprobs")
        return Generation(
            token_ids=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs),
            finish_reason=sequence.stop_reason,
            weight_version=version,
            seconds=time.monotonic() - started,
        )

    async def _awaited(self, answer: asyncio.Future[SampledSequence]) -> SampledSequence:
        left = self._patience
        try:
            while not answer.done() and left > 0:
                began, most = time.monotonic(), min(LOOK_SECONDS, left)
                postpone(most)
                await asyncio.wait((answer,), timeout=most)
                waited = time.monotonic() - began
                postpone(waited - most)
                left -= waited
            return await answer
        finally:
            answer.cancel()


def sampling_params(sampling: Mapping[str, Any]) -> SamplingParams:
    """Return the SDK's parameters for SGLang's; what is None is left to the server.

    Raises:
        EngineRefused: the server has no such parameter. A stop text would end an action between two ids.
    """
    own = {name: value for name, value in sampling.items() if name not in _IGNORED and value is not None}
    if unknown := sorted(own.keys() - _TAKEN):
        raise EngineRefused(f"sampling parameters that the server does not take: {', '.join(unknown)}. Remove them")
    named = {
        "max_tokens": own.get("max_new_tokens"),
        "stop": list(own.get("stop_token_ids") or ()) or None,
        "seed": own.get("sampling_seed"),
        **{name: own[name] for name in ("temperature", "top_p", "top_k") if name in own},
    }
    return SamplingParams(**{name: value for name, value in named.items() if value is not None})


class TinkerPolicy:
    """See `orl_rollout.training.course.Policy`. `saved` is what a checkpoint says, but for its path and step."""

    def __init__(self, adapters: Adapters, trainer: TrainerConfig, saved: Saved, patience: float) -> None:
        self._adapters, self._trainer, self._saved = adapters, trainer, saved
        self._engine = TinkerEngine(adapters.sample, patience)

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        """Make one update. The server sums the loss over ids, so each advantage is divided by their number."""
        if not rows:
            return {}
        ids, adam = trained_ids(rows), self._adam(step)
        trained = await self._adapters.update([tinker_datum(row, ids) for row in rows], adam)
        difference = difference_of(rows, trained)
        return {
            **with_common_names(trained.metrics, NAMES),
            "learning_rate": adam.learning_rate,
            "response_tokens": fmean(len(row.datum.response) for row in rows),
            **({} if difference is None else {DIFFERENCE: difference}),
        }

    async def publish(self, version: str) -> Mapping[str, float]:
        """Copy the weights to the server's sampler."""
        await self._adapters.refresh()
        self._engine.weight_version = version
        return {}

    def engine(self) -> TinkerEngine:
        """Return the engine over the server's sampler."""
        return self._engine

    async def save(self, folder: Path, step: int) -> None:
        """Save the adapters on the server, and their path in `folder`."""
        path = await self._adapters.save(f"step-{step}")
        write_checkpoint(folder, structs.replace(self._saved, path=path, step=step))

    def _adam(self, step: int) -> AdamParams:
        trainer = self._trainer
        progress = (step - 1) / (trainer.num_rollout or 1)
        decay = {"linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
        return AdamParams(
            learning_rate=(trainer.lr or 0.0) * decay.get(trainer.lr_decay_style or "", 1.0),
            beta1=trainer.adam_beta1 or 0.0,
            beta2=trainer.adam_beta2 or 0.0,
            eps=trainer.adam_eps or 0.0,
            weight_decay=trainer.weight_decay or 0.0,
            grad_clip_norm=own_options(trainer).grad_clip_norm,
        )


def tinker_datum(row: Row, ids: int) -> Datum:
    """Return what the server trains for `row`, in an update of so many `ids`.

    The row of the ids x0 ... xN shows x0 ... xN-1 and trains x1 ... xN. So an id's target, logprob and advantage are at
    the place at which the model sees the ids before it. An id that does not train has the advantage 0. The server sums
    the loss over all ids of an update, so advantages are divided by the number of trained ids: the learning rate then
    does not depend on it, and a rollout counts once, whether it comes as one row or as several (law L7).
    """
    datum = row.datum
    whole = [*datum.prompt, *datum.response]
    before = [0.0] * (len(datum.prompt) - 1)
    return Datum(
        model_input=ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": whole[1:],  # pyright: ignore[reportArgumentType]
            "logprobs": [*before, *datum.logprobs],  # pyright: ignore[reportArgumentType]
            "advantages": [*before, *(gained / ids for gained in row.advantages)],  # pyright: ignore[reportArgumentType]
        },
    )


def difference_of(rows: Sequence[Row], trained: ForwardBackwardOutput) -> float | None:
    """Return the mean absolute difference between the logprobs of training and of sampling; None if it is not known."""
    sizes: list[float] = []
    for row, output in zip(rows, trained.loss_fn_outputs, strict=False):
        if "logprobs" not in output:
            return None
        own = output["logprobs"].data[len(row.datum.prompt) - 1 :]
        pairs = zip(own, row.datum.logprobs, row.datum.loss_mask, strict=True)
        sizes += [abs(now - then) for now, then, trains in pairs if trains]
    return fmean(sizes) if sizes else None


def train(run: Run, open_player: OpenPlayer = runtime_of) -> None:
    """See `orl_tinker.train`. `open_player` opens the player: that of the run, or a test's."""
    schedule, saved = planned(run)
    with interrupt.listening(), reporting(run) as report:
        interrupt.run(_train(run, schedule, saved, open_player, report))


async def _train(run: Run, schedule: Schedule, saved: Saved, open_player: OpenPlayer, report: Report) -> None:
    trainer, patience = schedule.trainer, run.config.rollout.patience
    origin = {"resumed_from": saved.path, "resumed_step": saved.step} if saved.path else {}
    record = Record(run, PACKAGES, origin, report)
    opening = Adapters(trainer, saved.model, saved.path, patience)
    async with opening as adapters, open_player(run, saved.model) as player:
        if saved.path:
            say(f"continues {saved.path} after step {saved.step}")
        policy = TinkerPolicy(adapters, trainer, saved, patience)
        await Course(run, schedule, policy, player, record).run()


def planned(run: Run) -> tuple[Schedule, Saved]:
    """Return the schedule of `run`, and what its checkpoints say. It continues the one that has a path.

    Raises:
        ConfigError: there is no model, the tasks cannot be read or are too few, or the checkpoint cannot be continued.
    """
    trainer = run.config.trainer.with_defaults(DEFAULTS)
    refuse_workers(run.config, "Tinker samples")
    config, saved = structs.replace(run.config, trainer=trainer), saved_in(run.config)
    model = saved.model if saved else trainer.model
    if not model:
        raise ConfigError("trainer.model is not set. Give --model: a name that the server knows, or a folder for yours")
    schedule = schedule_of(run, trainer, ESTIMATORS["grpo"])
    order = order_of(config, schedule.tasks)
    if saved:
        resume.check_order(config, saved.order, order, saved.step, fixed=("lora_rank",))
    start = structs.replace(saved or Saved(path=""), model=model, order=order)
    return structs.replace(schedule, done=start.step), start


def plan_run(run: Run) -> Plan:
    """See `orl_tinker.plan`."""
    (schedule, saved), own = planned(run), own_options(run.config.trainer)
    trainer, place = schedule.trainer, own.tinker_url or "Tinker"
    lines = (
        f"would train {saved.model} at {place}, on {run.task_data}",
        f"continues {saved.path} after step {saved.step}" if saved.path else "",
        f"{schedule.steps} steps of {trainer.rollout_batch_size} x {schedule.group_size} rollouts, one update each",
        f"trains LoRA adapters of rank {own.lora_rank} with {own.loss_fn}, learning rate {trainer.lr:g}",
    )
    key = "" if has_key(own) else f"not set in the environment: {KEY}"
    return plan_of(run, lines, f"rollouts are sampled at {place}", (key,))
