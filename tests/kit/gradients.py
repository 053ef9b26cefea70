"""The gradients and weights that every trainer on rows must reproduce: golden files of a tiny fp32 model.

`MODEL` is its checkpoint, `ADAPTERS` the LoRA weights that cases with `lora` begin with (rank 4, alpha 32). AdamW has
betas 0.9 and 0.99, eps 1e-8 and no decay. A step plays eight rollouts, in groups of four, and makes two updates, of the
even and the odd ones; the rows of both keep the logprobs of the weights before the step as their old ones. Two rollouts
of the first step fail, so they have no row; rows named `whole` have no failure.

dapo and cispo divide by half of the step's trained ids, bnpo by an update's trained ids, grpo by an update's rollouts
and by the trained ids of each, dr_grpo by an update's rollouts times `WIDTH`. KL is k3 to the weights before the first
step (with LoRA: to the model without adapters), with the mean of the loss, and no correction weighs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from orl_rollout.training.rows import Row
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

FOLDER = Path(__file__).parents[1] / "golden" / "gradients"
MODEL, ADAPTERS = FOLDER / "model", FOLDER / "adapters.safetensors"
RANK, MAX_NORM, WIDTH = 4, 1.0, 4096
PARTS = "first", "second", "weights"
SAME = 1e-5  # most of `apart` for a trainer on one thread
Weights = Mapping[str, Tensor]
Steps = list[list[list[Row]]]  # the rows of each update of each step


class Case(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One run of two steps.

    `sequence` ratios are of a rollout: the mean of its log ratios. `clip` is low and high; for cispo, high is the cap
    less 1, and nothing is below. `correction` by the logprobs of sampling has the cap 3.0. The learning rate is
    `lr`, reached after `warmup` updates from 0. With `kl_ratio`, each id's KL is multiplied by its ratio, unclipped and
    with a gradient.

    The results of its updates: `norms` of the gradients before they are clipped to `MAX_NORM`, and `clipped`, the share
    of ids (or of rollouts) whose ratio is cut.
    """

    name: str
    rows: str = "one"
    loss: str = "dapo"
    sequence: bool = False
    clip: tuple[float, float] = (0.2, 0.2)
    correction: str | None = "sequence_mask"
    beta: float = 0.0
    kl_ratio: bool = True
    temperature: float = 1.0
    lora: bool = False
    lr: float = 0.01
    warmup: int = 0
    norms: tuple[float, ...] = ()
    clipped: tuple[float, ...] = ()

    @property
    def steps(self) -> Steps:
        """The rows, with the advantages of their ids."""
        return msgspec.json.decode((FOLDER / f"rows_{self.rows}.json").read_bytes(), type=Steps)

    def tensors(self, of: str) -> Weights:
        """Gradients of the `first` or `second` update before they are clipped, or the `weights` after two steps."""
        return part(load_file(FOLDER / f"{self.name}.safetensors"), of)


def part(tensors: Weights, of: str) -> Weights:
    """One of the `PARTS` of a file."""
    return {name.removeprefix(f"{of}/"): one for name, one in tensors.items() if name.startswith(f"{of}/")}


def load_cases() -> dict[str, Case]:
    """The cases by name."""
    cases = msgspec.json.decode((FOLDER / "cases.json").read_bytes(), type=list[Case])
    return {case.name: case for case in cases}


def apart(found: Weights, golden: Weights) -> float:
    """The largest difference, in parts of the largest entry."""
    assert found.keys() == golden.keys()
    difference = max(float((found[name] - one).abs().max()) for name, one in golden.items())
    return difference / max(float(one.abs().max()) for one in golden.values())


def gradients_of(model: Module) -> dict[str, Tensor]:
    """A copy of the gradients, with the names of a checkpoint's file."""
    named = model.named_parameters()
    return {name.replace(".default.", "."): one.grad.clone() for name, one in named if one.grad is not None}
