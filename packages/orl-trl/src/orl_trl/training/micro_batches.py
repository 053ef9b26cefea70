"""Micro-batches of TRL's passes, sized by token ids: rows of like length are trained together, with little padding.

A micro-batch counts in the loss by its share of the pass, so the gradient is that of the undivided pass. Rows without a
trained id are left out. If memory runs out, the budget is halved and the update begins again, so that nothing is lost
and nothing counts twice. The module knows rows of TRL's batch, and no rollout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache
from msgspec import Struct
from orl_core.errors import ConfigError
from orl_rollout.logs import logger_of
from torch import Tensor
from transformers import Trainer

from orl_trl.engine.out_of_memory import is_out_of_memory
from orl_trl.options import TOKENS_PER_GPU
from orl_trl.run_plan.settings import MEANS_OVER_IDS
from orl_trl.training.several_rows import SeveralRows

logger = logger_of("orl")

T = TypeVar("T")

BY_IDS = (*MEANS_OVER_IDS, "bnpo")  # values of `loss_type` where each trained id of a pass counts the same
ENTROPY = ("entropy_coef", "_last_world_entropy", "_entropy_window_stats")  # TRL's state of the entropy bonus
LOWER = (
    "Lower --max-context-len, or give training more room: --lora-rank 32, --optimizer adamw_8bit, "
    "-- --gradient-checkpointing true"
)


def micro_batches(prompts: Sequence[int], responses: Sequence[int], budget: int, most: int) -> list[list[int]]:
    """Return the rows of each micro-batch, longest rows first: at most `most`, of at most `budget` ids with padding.

    `prompts` and `responses` are the lengths of the rows. A row that is longer than `budget` is alone.
    """
    parts: list[list[int]] = []
    prompt = response = 0
    for row in sorted(range(len(prompts)), key=lambda row: prompts[row] + responses[row], reverse=True):
        wider = max(prompt, prompts[row]), max(response, responses[row])
        if parts and len(parts[-1]) < most and (len(parts[-1]) + 1) * sum(wider) <= budget:
            parts[-1].append(row)
            prompt, response = wider
        else:
            parts.append([row])
            prompt, response = prompts[row], responses[row]
    return parts


def rows_of(batch: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return some rows of TRL's batch, without padding that all of them have.

    Prompts are padded on the left, everything of a response on the right.
    """
    count, width = batch["completion_ids"].shape
    chosen = torch.tensor(rows, device=batch["completion_ids"].device)
    prompt, response = (int(batch[name][chosen].sum(1).max()) for name in ("prompt_mask", "completion_mask"))
    part = dict(batch)
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != count:
            continue
        part[name] = value[chosen]
        if name in ("prompt_ids", "prompt_mask"):
            part[name] = part[name][:, value.size(1) - prompt :]
        elif value.dim() == 2 and value.size(1) == width:
            part[name] = part[name][:, :response]
    return part


@contextmanager
def naming_options() -> Generator[None]:
    """Name options to lower if memory runs out and no micro-batch can be halved, such as in the optimizer.

    Raises:
        ConfigError: it ran out.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"training ran out of memory outside of its micro-batches: {error}. {LOWER}") from error


class _Update(Struct):
    """The passes of an update so far, and TRL's notes from before them."""

    number: int = -1
    passes: list[dict[str, Any]] = []
    noted: dict[str, int] = {}
    entropy: dict[str, Any] = {}


class MicroBatches(SeveralRows):
    """TRL's trainer, whose passes are computed in micro-batches.

    `micro_batch_tokens` is the budget of one, in ids with padding. `out_of_memory` counts how often it was halved.
    """

    micro_batch_tokens = TOKENS_PER_GPU
    out_of_memory = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._update = _Update()
        self._tried = 0, 0  # rows and ids, with padding, of the latest micro-batch

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward of one of TRL's passes, and return its loss.

        Raises:
            ConfigError: one row alone needs more memory than there is.
        """
        began = time.perf_counter()
        model.train()
        batch: dict[str, Any] = self._prepare_inputs(inputs)
        if self._update.number != self.state.global_step:
            entropy = {name: getattr(self, name, None) for name in ENTROPY}
            self._update = _Update(number=self.state.global_step, noted=self._noted(), entropy=entropy)
        update = self._update
        update.passes.append(batch)
        todo = [batch]

        def begin_again() -> None:
            todo[:] = update.passes
            model.zero_grad()
            vars(self).update(update.entropy)
            for name, values in self._metrics["train"].items():
                del values[update.noted.get(name, 0) :]

        losses = self._until_it_fits(lambda: [self._pass(model, one) for one in todo], begin_again)
        self._step += 1
        self._current_train_step_time += time.perf_counter() - began
        if len(update.passes) == self.current_gradient_accumulation_steps:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0
        return losses[-1]

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return a micro-batch as it is, and what TRL makes of anything else."""
        return generation_batch if isinstance(generation_batch, dict) else super()._prepare_inputs(generation_batch)

    def _pass(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Add the gradients of a pass, micro-batch by micro-batch; return its loss."""
        trained: Tensor = (batch["completion_mask"] * batch.get("tool_mask", 1)).sum(1)
        kept = trained.nonzero()[:, 0].tolist() or [0]
        prompts, responses = (batch[name].sum(1)[kept].tolist() for name in ("prompt_mask", "completion_mask"))
        chosen = micro_batches(prompts, responses, self.micro_batch_tokens, len(kept))
        noted, losses, counts = self._noted(), [], []
        for number, members in enumerate(chosen, 1):
            rows = [kept[member] for member in members]
            counts.append(int(trained[rows].sum()))
            by_ids = counts[-1] / max(1, int(trained.sum())) or 1.0
            share = by_ids if self.loss_type in BY_IDS else len(rows) / len(trained)
            with self._counting(share, last=number == len(chosen)):
                part = rows_of(batch, rows)
                part["num_items_in_batch"] = batch["num_items_in_batch"] * share
                self._tried = len(rows), part["prompt_ids"].numel() + part["completion_ids"].numel()
                losses.append(Trainer.training_step(self, model, part))
        self._merge(noted, counts)
        self._metrics["train"]["micro_batches"].append(len(chosen))
        return torch.stack(losses).sum()

    @contextmanager
    def _counting(self, share: float, *, last: bool) -> Generator[None]:
        """Let TRL count a micro-batch by its `share` of the pass, and end its notes on the update with the `last`."""
        steps, state = self.current_gradient_accumulation_steps, self.accelerator.gradient_state
        ends = state.sync_gradients
        self.current_gradient_accumulation_steps = steps / share
        state._set_sync_gradients(ends and last)
        try:
            yield
        finally:
            self.current_gradient_accumulation_steps = steps
            state._set_sync_gradients(ends)

    def _noted(self) -> dict[str, int]:
        """Return how many values each of TRL's metrics has."""
        return {name: len(values) for name, values in self._metrics["train"].items()}

    def _merge(self, noted: Mapping[str, int], counts: Sequence[int]) -> None:
        """Make one value of those of all micro-batches, which have so many trained ids each."""
        for name, values in self._metrics["train"].items():
            begin = noted.get(name, 0)
            if name == "policy_loss" and self.loss_type in MEANS_OVER_IDS:  # each has its share of the sum
                values[begin:] = [sum(values[begin:])]
            elif len(values) - begin == len(counts):
                values[begin:] = [_merged(name, values[begin:], counts)]

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **more: Any,
    ) -> Any:
        """Return TRL's logprobs; those of a whole batch, which it asks for by `batch_size`, in micro-batches."""
        if batch_size is None:
            return self._score(model, input_ids, attention_mask, logits_to_keep, **more)
        cut = input_ids.size(1) - logits_to_keep
        prompts, responses = (mask.sum(1).tolist() for mask in (attention_mask[:, :cut], attention_mask[:, cut:]))
        logprobs = torch.zeros(attention_mask[:, cut:].shape, device=input_ids.device)

        def fill() -> None:
            for rows in micro_batches(prompts, responses, self.micro_batch_tokens, batch_size):
                prompt, keep = (max(lengths[row] for row in rows) for lengths in (prompts, responses))
                ids, mask = (one[rows, cut - prompt : cut + keep] for one in (input_ids, attention_mask))
                self._tried = len(rows), ids.numel()
                logprobs[rows, :keep] = self._score(model, ids, mask, keep, **more)[0].float()

        self._until_it_fits(fill, lambda: None)
        return logprobs, None, None

    def _score(self, model: Any, ids: Tensor, mask: Tensor, keep: int, **more: Any) -> Any:
        """Return TRL's logprobs, entropies and auxiliary loss of rows whose padding is moved to the right.

        A query at padding on the left sees no key. If many do, gradients of PyTorch's attention on a GPU are NaN.
        """
        padding = (mask.cumsum(1) == 0).sum(1, keepdim=True)
        widest, width = int(padding.max()), ids.size(1)
        places = (torch.arange(width, device=ids.device) + padding) % width
        score = super()._get_per_token_logps_and_entropies
        *by_id, loss = score(model, ids.gather(1, places), mask.gather(1, places), keep + widest, **more)
        back = torch.arange(keep, device=ids.device) + widest - padding
        return *(None if values is None else values.gather(1, back) for values in by_id), loss

    def _until_it_fits(self, work: Callable[[], T], begin_again: Callable[[], None]) -> T:
        """Return what `work` returns. If memory runs out, halve the budget, `begin_again` and repeat it.

        Raises:
            ConfigError: one row alone needs more memory than there is.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                rows, ids = self._tried
                if not is_out_of_memory(error):
                    raise
                if rows <= 1:
                    raise ConfigError(f"training ran out of memory at one row of {ids} ids. {LOWER}") from error
            self.micro_batch_tokens = ids // 2  # the error, which holds tensors, is gone
            self.out_of_memory += 1
            logger.warning(
                "memory ran out at %d ids. Micro-batches have at most %d now (--max-tokens-per-gpu)", ids, ids // 2
            )
            clear_device_cache(garbage_collection=True)
            begin_again()


def _merged(name: str, values: Sequence[float], counts: Sequence[int]) -> float:
    """Return one value of a metric: the least, the greatest, or the mean over trained ids."""
    if name.endswith(("_min", "_max")):
        return min(values) if name.endswith("_min") else max(values)
    return sum(value * count for value, count in zip(values, counts, strict=True)) / max(1, sum(counts))
