"""Rollouts of several rows in TRL, whose own batch has one row for each rollout (law L7).

TRL makes the advantages from the first rows; the others join its batch afterwards, each with the advantage of its
rollout. With `turn_advantages`, those of turns take the place of TRL's (`turns`). A loss that is a mean over all
trained ids of the batch then counts each id once, whatever its row; `settings` refuses the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from orl_core.config.trainer import MAX_LOGPROB_DIFFERENCE
from orl_core.datum import Datum
from orl_rollout.results.outcome import Outcome
from orl_rollout.training.rows import advantages_per_id
from torch.nn.functional import pad
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import pad as pad_rows

from orl_trl.training.importance import Difference, check_difference, importance_ratios
from orl_trl.training.rollouts import Rollouts

_FILLER = Datum(task_key="", rollout_id="", prompt=(0,), response=(0,), sampled=(0,), loss_mask=(0,), logprobs=(0.0,))


def more_rows(outcomes: Sequence[Outcome]) -> list[tuple[int, Datum]]:
    """Return the rows of each rollout after its first one, with the rollout's index in the batch."""
    return [(index, datum) for index, outcome in enumerate(outcomes) for datum in outcome.datums[1:]]


class SeveralRows(GRPOTrainer):
    """TRL's trainer, which trains all rows of the latest rollouts. `max_logprob_difference`: see `check_difference`."""

    max_logprob_difference = MAX_LOGPROB_DIFFERENCE
    turn_advantages = False

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        check_difference(batch, self.max_logprob_difference)
        outcomes, args = cast("Rollouts", self.rollout_func).outcomes, cast("GRPOConfig", self.args)
        of_turns: list[list[list[float]]] = []
        if self.turn_advantages:
            scale, group_size = args.scale_rewards == "group", args.num_generations or 1
            of_turns = advantages_per_id(outcomes, group_size, center=True, scale=scale, turns=True)
            empty = batch["advantages"].new_zeros(0, batch["completion_ids"].size(1))
            batch["advantages"] = _below(empty, [(*own, [0.0])[0] for own in of_turns], 0, left=False)
        rows = more_rows(outcomes)
        if not rows:
            return batch
        passes = args.steps_per_generation or 1  # TRL cuts the batch into so many equal parts
        count = len(batch["advantages"]) + len(rows)
        data = [datum for _, datum in rows] + [_FILLER] * (-count % passes)
        longer = self._joined(batch, data)
        if of_turns:
            own = [one for several in of_turns for one in several[1:]]
            nothing = [[0.0]] * (len(data) - len(rows))
            longer["advantages"] = _below(batch["advantages"], [*own, *nothing], 0, left=False)
        else:
            gained = batch["advantages"][[index for index, _ in rows]]
            nothing = gained.new_zeros(len(data) - len(rows))
            longer["advantages"] = torch.cat([batch["advantages"], gained, nothing])
        longer["num_items_in_batch"] = (longer["completion_mask"] * longer["tool_mask"]).sum()
        if "old_per_token_logps" in batch:
            longer["old_per_token_logps"] = self._old_logprobs(batch["old_per_token_logps"], longer)
        if "importance_sampling_ratio" in batch:
            owners = [*range(len(batch["advantages"])), *(index for index, _ in rows)]
            longer["importance_sampling_ratio"] = self._ratios(longer, owners)
        return {**batch, **longer}

    def _ratios(self, longer: Mapping[str, torch.Tensor], owners: Sequence[int]) -> torch.Tensor:
        """Return the importance ratios of all rows, and make TRL's metrics of them those of all rows.

        `owners` has the rollout of each row. The filling rows follow; they may have any, as they add 0.
        """
        mask = longer["completion_mask"] * longer["tool_mask"]
        filled = [0] * (len(mask) - len(owners))
        difference = Difference(
            values=(longer["old_per_token_logps"] - longer["sampling_per_token_logps"]) * mask,
            mask=mask.bool(),
            owners=torch.tensor([*owners, *filled], device=mask.device),
        )
        ratios = importance_ratios(difference, cast("GRPOConfig", self.args))
        for name, value in difference.metrics(ratios).items():
            self._metrics["train"][name][-1] = value
        return ratios

    def _joined(self, batch: Mapping[str, Any], data: Sequence[Datum]) -> dict[str, torch.Tensor]:
        """Return the columns of ids and masks with those of `data` below them, padded as TRL pads."""
        fill = cast("int", self._tokenizer.pad_token_id)
        ones = [[1] * len(datum.response) for datum in data]
        columns: dict[str, tuple[Sequence[Sequence[float]], int]] = {
            "prompt_ids": ([datum.prompt for datum in data], fill),
            "prompt_mask": ([[1] * len(datum.prompt) for datum in data], 0),
            "completion_ids": ([datum.response for datum in data], fill),
            "completion_mask": (ones, 0),
            "tool_mask": ([datum.loss_mask for datum in data], 1),
            "sampling_per_token_logps": ([datum.logprobs for datum in data], 0),
        }
        return {
            name: _below(batch[name], rows, value, left=name.startswith("prompt"))
            for name, (rows, value) in columns.items()
        }

    def _old_logprobs(self, known: torch.Tensor, longer: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the logprobs of the weights that sampled, for rows whose first ones TRL has worked out."""
        begin, width = known.size(0), longer["completion_ids"].size(1)
        ids = torch.cat([longer["prompt_ids"][begin:], longer["completion_ids"][begin:]], dim=1)
        mask = torch.cat([longer["prompt_mask"][begin:], longer["completion_mask"][begin:]], dim=1)
        with torch.no_grad():
            others, *_ = self._get_per_token_logps_and_entropies(
                self.model, ids, mask, width, batch_size=self.args.per_device_train_batch_size
            )
        return torch.cat([pad(known, (0, width - known.size(1))), others])


def _below(first: torch.Tensor, rows: Sequence[Sequence[float]], value: int, *, left: bool) -> torch.Tensor:
    """Return `first`, B x W, with `rows` below it, all padded to the longest of them."""
    tensors = [torch.tensor(row, dtype=first.dtype, device=first.device) for row in rows]
    return pad_rows([*first, *tensors], padding_value=value, padding_side="left" if left else "right")
