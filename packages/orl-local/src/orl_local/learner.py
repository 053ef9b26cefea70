"""The weights that train: updates of a step, and the numbers that metrics are made of.

It works on one thread, knows rows, and neither rollouts nor engines. An update adds the gradients of its micro-batches,
and is applied at once or not at all. If memory runs out, the micro-batches are halved and the update begins again, so
that nothing is lost and nothing counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from statistics import fmean
from typing import Any, TypeVar

import torch
from orl_core.errors import ConfigError, EngineError, OrlError, boundary
from orl_rollout.logs import logger_of
from orl_rollout.run_folder.judges import DIFFERENCE
from orl_rollout.training.rows import Row
from peft import PeftModel
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.optimization import Adafactor, get_scheduler

from orl_local.batch import (
    Batch,
    Member,
    batch_of,
    filler_of,
    give,
    ids_of,
    members_of,
    micro_batches,
    part_of,
    parts_of,
)
from orl_local.engine.local_model import clear_memory, full, is_out_of_memory, part_like, peak_memory
from orl_local.engine.lora import base_of
from orl_local.objective import loss_of, mean_of_rollout, weights_of
from orl_local.scoring import Scorer
from orl_local.settings import Settings

T = TypeVar("T")
JUMP = 5  # how many times `max_logprob_difference` a single step may differ
LOWER = (
    "Lower --max-context-len, or give training more room: --lora-rank 32, --optimizer adamw_8bit, --checkpointing on"
)
CPU = torch.device("cpu")
logger = logger_of("orl")


class Peers:
    """The ranks of a run, `count` of which train the same weights, and the number of this one.

    Ranks with `sharded` weights work on as many micro-batches, one after the other.
    """

    number, count, sharded = 0, 1, False

    def any(self, word: bool) -> bool:
        """Tell whether one of the ranks with sharded weights says so. All of them ask."""
        return word

    def add(self, trained: Sequence[Tensor], sums: Tensor) -> None:
        """Add what the others have to the gradients of `trained` and to `sums`, in place.

        Raises:
            OrlError: another rank failed.
        """


ALONE = Peers()


class Learner:
    """Trains `model`, which is on its device, with adapters. `check` is called between micro-batches, and may raise.

    `first` are the weights that training began with, if their KL divergence counts. `peers` are the ranks of a run.

    `tokens` are the ids of a micro-batch, `out_of_memory` counts how often they were halved.
    """

    def __init__(
        self, model: Any, settings: Settings, check: Callable[[], None], first: Any = None, peers: Peers = ALONE
    ) -> None:
        self.model, self.settings, self._peers = model, settings, peers
        self.tokens, self.out_of_memory, self._applied = settings.tokens, 0, False
        self._check = check
        self._trained = [one for one in model.parameters() if one.requires_grad]
        self.optimizer = optimizer_of(model, settings)  # before a forward pass, which makes sharded weights whole
        self._scorer = Scorer(model, settings.temperature)
        self._reference = reference_of(model, settings, first)
        self.schedule: Any = get_scheduler(
            "constant_with_warmup" if settings.lr_decay_style == "constant" else settings.lr_decay_style,
            self.optimizer,
            num_warmup_steps=settings.warmup,
            num_training_steps=settings.steps * settings.updates,
        )
        if settings.recompute:
            base: Any = base_of(model)  # older versions of transformers have the second name only
            enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
            enable({"use_reentrant": False})

    def restore(self, optimizer: dict[str, Any], schedule: dict[str, Any]) -> None:
        """Continue with the states of another run, and with the rates and decays of this one."""
        groups, rates = self.optimizer.param_groups, self.schedule.base_lrs
        own = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        parameters = [one for group in groups for one in group["params"]]
        for place, state in optimizer["state"].items():
            state.update({name: part_like(value, parameters[place]) for name, value in state.items()})
        self.optimizer.load_state_dict(optimizer)
        self.schedule.load_state_dict(schedule)
        self.schedule.base_lrs = rates
        groups = self.optimizer.param_groups
        for group, options, rate, factor in zip(groups, own, rates, self.schedule.lr_lambdas, strict=True):
            group.update(options, lr=rate * factor(self.schedule.last_epoch))

    def _draw_nothing(self) -> None:
        """Switch off every dropout, and what routers draw. Layers compute activations again in training mode only."""
        self.model.eval()
        layers = (one for one in self.model.modules() if isinstance(one, GradientCheckpointingLayer))
        for own in map(vars, layers if self.settings.recompute else ()):
            own.update({name: 0.0 for name, value in own.items() if "dropout" in name and isinstance(value, float)})
            own["training"] = True

    def update(self, rows: Sequence[Row], step: int) -> dict[str, float]:
        """Make all updates of a step on its rows. Return the numbers of training.

        Raises:
            EngineError: the engine did not sample with these weights.
            OrlError: a gradient is not finite.
            ConfigError: one row alone needs more memory than there is.
        """
        if not rows:
            return {}
        numbers = self.train_on(parts_of(rows, self.settings, step))
        halved, self.out_of_memory = self.out_of_memory, 0
        peak = peak_memory()
        return {
            **numbers,
            "response_tokens": fmean(len(row.datum.response) for row in rows),
            "out_of_memory": float(halved),
            **({"train_memory_gib": peak} if peak else {}),
        }

    def train_on(self, parts: Sequence[Sequence[Row]]) -> dict[str, float]:
        """Make one update on each of `parts`. Return the numbers of training, means over updates by their ids."""
        whole, self._applied = members_of(parts, self.settings), False
        self._draw_nothing()
        ids = [sum(len(one.places) for one in members) for members in whole]
        mine = self._peers.number, self._peers.count
        updates = [part_of(members, *mine) or [filler_of(members[0])] for members in whole]
        apart = self._look_ahead(updates)
        numbers: list[Mapping[str, float]] = []
        for number, members in enumerate(updates):
            if number and self.settings.algorithm.ratio == "sequence" and self._are_split(members):
                self._score_drift(members)
            sums = self._until_it_fits(lambda members=members, count=ids[number]: self._gradient(members, count))
            added = torch.stack([*sums.values(), apart])
            self._peers.add(self._trained, added)
            norm = full(torch.nn.utils.get_total_norm([one.grad for one in self._trained if one.grad is not None]))
            values = torch.cat([added, norm.float()[None]]).tolist()  # the one wait for a GPU
            read = dict(zip((*sums, "apart", "grad_norm"), values, strict=True))
            if not number:
                self._check_difference(read[DIFFERENCE] + read["apart"], sum(ids))
            numbers.append(self._apply({name: read[name] for name in (*sums, "grad_norm")}, norm, ids[number]))
        return {
            name: sum(one[name] * size for one, size in zip(numbers, ids, strict=True)) / max(1, sum(ids))
            for name in numbers[0]
        }

    def nll(self, rows: Sequence[Row]) -> float:
        """Return the mean negative logprob of the trained ids of rows."""
        return -float(self._score(members_of([rows], self.settings)[0]).mean())

    def _are_split(self, members: Sequence[Member]) -> bool:
        """Tell whether a rollout of this rank, or of its sharded peers, has several rows."""
        return self._peers.any(not all(one.alone for one in members))

    def _look_ahead(self, updates: Sequence[Sequence[Member]]) -> Tensor:
        """Score what the weights of now must score: the rows of later updates, and rollouts of several rows.

        Return the sum of absolute differences to the engine, [], for the rows of later updates.
        """
        first, later = updates[0], [one for members in updates[1:] for one in members]
        if self.settings.correction.startswith("sequence") and self._are_split(first):
            self._weigh(first, self._score(first))
        if not later:
            return torch.zeros((), device=self.model.device)
        old = self._score(later)
        give(later, "old", old)
        self._weigh(later, old)
        return (old - ids_of(later, CPU).sampled).abs().sum().to(self.model.device)

    def _weigh(self, members: Sequence[Member], logprobs: Tensor) -> None:
        """Give the members the weights of the correction, for logprobs of all rows of their rollouts."""
        ids = ids_of(members, CPU)
        give(members, "weight", weights_of(logprobs - ids.sampled, ids, self.settings))

    def _score_drift(self, members: Sequence[Member]) -> None:
        """Give the members the mean change of the logprobs of their rollouts, with the weights of now."""
        ids = ids_of(members, CPU)
        if ids.old is not None:
            give(members, "drift", mean_of_rollout(self._score(members) - ids.old, ids))

    @torch.no_grad()
    def _score(self, members: Sequence[Member]) -> Tensor:
        """Return the logprobs of the members' trained ids, float32 [N] on the CPU."""

        def score() -> Tensor:
            by_place: dict[int, Tensor] = {}
            for places, batch in self._batches(members):
                sizes = [len(members[place].places) for place in places]
                by_place.update(zip(places, self._scorer(batch).logprobs.split(sizes), strict=True))
            return torch.cat([by_place[place] for place in range(len(members))]).cpu()

        return self._until_it_fits(score)

    def _gradient(self, members: Sequence[Member], ids: int) -> dict[str, Tensor]:
        """Add the gradients of the part of an update, of `ids` in all. Return the loss, and sums of other numbers."""
        self.optimizer.zero_grad(set_to_none=True)
        names = ("loss", DIFFERENCE, "clip_fraction", "entropy", "nll", *(("kl",) if self._reference else ()))
        sums = {name: torch.zeros((), device=self.model.device) for name in names}
        for _, batch in self._batches(members):
            scores, own = self._scorer(batch), batch.ids
            now = scores.logprobs.detach()
            reference = self._reference(batch) if self._reference else None
            loss, clipped, kl = loss_of(scores.logprobs, reference, own, self.settings)
            routed = 0.0 if scores.router_loss is None else scores.router_loss * (len(batch.row) / ids)
            whole = loss + self._scorer.router_weight * routed
            with torch.autocast("cuda", enabled=False):
                (whole * (self._peers.count if self._peers.sharded else 1)).backward()  # FSDP2 takes the mean of ranks
            numbers = {
                "loss": loss.detach(),
                DIFFERENCE: ((now if own.old is None else own.old) - own.sampled).abs().sum(),
                "clip_fraction": clipped.sum(),
                "entropy": scores.entropies.sum(),
                "nll": -now.sum(),
                **({"kl": kl.sum()} if self._reference else {}),
            }
            sums = {name: value.float() + sums[name] for name, value in numbers.items()}
        return sums

    def _apply(self, numbers: Mapping[str, float], norm: Tensor, ids: int) -> dict[str, float]:
        """Apply the gradient of this `norm`, [], if it is finite. Return the numbers of the update."""
        if not math.isfinite(numbers["grad_norm"]):
            self.optimizer.zero_grad(set_to_none=True)
            raise OrlError(
                "a gradient is not finite, and is not applied. Begin a new run from the last checkpoint, with a "
                "lower --lr, and its folder as --model"
            )
        if self.settings.max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(self._trained, self.settings.max_grad_norm, norm)
        rate, self._applied = self.optimizer.param_groups[0]["lr"], True
        self._until_it_fits(self.optimizer.step)
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        whole = ("loss", "grad_norm")
        means = {name: value if name in whole else value / max(1, ids) for name, value in numbers.items()}
        return {**means, "learning_rate": rate}

    def _check_difference(self, apart: float, ids: int) -> None:
        """Refuse a batch that was not sampled with the weights that train, before anything trains on it.

        A healthy engine in bf16 differs by 0.001 to 0.02 on average, and by up to 0.2 where the model is unsure
        (docs/evidence.md). Swapped tensors, or another model, differ by more than 1.
        """
        mean, most = apart / max(1, ids), self.settings.max_logprob_difference
        if not mean <= JUMP * most:
            self.optimizer.zero_grad(set_to_none=True)
            raise EngineError(
                f"logprobs of engine and trainer differ by {mean:.3f} on average over {ids} sampled token ids, "
                f"and a step may differ by {JUMP * most:g}: the engine does not compute with the weights of the "
                "trainer. Continue from the last checkpoint with --load; if the engine is right, raise "
                "trainer.max_logprob_difference"
            )

    def _batches(self, members: Sequence[Member]) -> Any:
        """Yield micro-batches on the device, with the places of their members: none while only other ranks have one."""
        own = iter(micro_batches([len(one.token_ids) for one in members], self.tokens))
        with self._scorer.precision():
            while self._peers.any((places := next(own, [])) != []):
                if not self._applied:  # half a step would train twice when a run continues
                    self._check()
                chosen = [members[place] for place in places] or [filler_of(members[0])]
                self._tried = len(chosen), len(chosen) * len(chosen[0].token_ids)
                yield places, batch_of(chosen, self.model.device)

    def _until_it_fits(self, work: Callable[[], T]) -> T:
        """Return what `work` returns. If memory runs out, halve the micro-batches and repeat it."""
        self._tried = 0, 0
        while True:
            try:
                return work()
            except RuntimeError as error:
                rows, ids = self._tried
                if not is_out_of_memory(error):
                    raise
                if rows <= 1 or self._peers.sharded:  # other ranks wait for this one in the middle of a layer
                    where = f"at {ids} ids of a micro-batch" if rows else "outside of its micro-batches"
                    advice = LOWER if rows <= 1 else f"Continue with --load, and --max-tokens-per-gpu {ids // 2}"
                    raise ConfigError(f"training ran out of memory {where}. {advice}") from error
            self.tokens = ids // 2  # the error, which holds tensors, is gone
            self.out_of_memory += 1
            logger.warning(
                "memory ran out at %d ids. Micro-batches have at most %d now (--max-tokens-per-gpu)", ids, ids // 2
            )
            self.optimizer.zero_grad(set_to_none=True)
            clear_memory()


def reference_of(model: Any, settings: Settings, first: Any) -> Callable[[Batch], Tensor] | None:
    """Return what scores with the weights that training began with; None if there is no KL divergence to weigh.

    With LoRA it is the model without its adapters, else `first`.
    """
    if not settings.kl_coef:
        return None
    adapted = isinstance(model, PeftModel)
    frozen = model if adapted else first.requires_grad_(False).eval()
    scorer = Scorer(frozen, settings.temperature)

    def score(batch: Batch) -> Tensor:
        with torch.no_grad(), model.disable_adapter() if adapted else nullcontext():
            logprobs = scorer(batch).logprobs
        if frozen is not model and isinstance(frozen, FSDPModule):  # no backward pass divides its ends again
            frozen.reshard()
        return logprobs

    return score


def optimizer_of(model: Any, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimizer. Matrices decay; norms and biases, which are vectors, never do.

    Raises:
        ConfigError: it cannot be made here.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [one for one in trained if one.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optimizer == "adafactor":
        return Adafactor(groups, lr=settings.lr, scale_parameter=False, relative_step=False)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.adam_eps, fused=True)
    with boundary(ConfigError, "making the optimizer adamw_8bit"):
        from importlib import import_module

        eight_bit: Any = import_module("bitsandbytes").optim.AdamW8bit
        return eight_bit(groups, lr=settings.lr, betas=betas, eps=settings.adam_eps)
