"""The objective: what an update makes smaller, written over single ids.

Every array has one entry for each trained id of some rows, [N]. `now` are logprobs of the weights that train, `old`
those of the weights that the step began with, `sampled` those of the engine. With A the advantage:

    ratio  = exp(now - old)                                of the id, or of its rollout
    weight = exp(old - sampled), masked or truncated       of the id, or of its rollout
    kl     = exp(reference - now) - (reference - now) - 1  of the id, against the weights without training
    loss   = -sum(share * (weight * min(ratio * A, clip(ratio) * A) - kl_coef * ratio * kl))

`share` makes it a mean. So two rows of a rollout, or micro-batches of any size, never change the gradient (law L7).
"""

from __future__ import annotations

import torch
from msgspec import Struct
from torch import Tensor

from orl_local.settings import Settings


class Ids(Struct, kw_only=True):
    """The trained ids of some rows. `rollout`, int64 [N], numbers the `rollouts` of the step.

    `old` is None if the weights are those that the step began with. `weight` and `drift` are None if all ids of each
    rollout are among these; else they are those of the whole rollout: the weight, and the mean of now - old.
    """

    advantages: Tensor
    sampled: Tensor
    share: Tensor
    rollout: Tensor
    rollouts: int
    old: Tensor | None = None
    weight: Tensor | None = None
    drift: Tensor | None = None


def loss_of(now: Tensor, reference: Tensor | None, ids: Ids, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return the part of the loss that these ids make, [], whether each ratio was clipped and its KL divergence, [N].

    `reference` are logprobs without training.
    """
    algorithm, gained = settings.algorithm, ids.advantages
    old = now.detach() if ids.old is None else ids.old
    ratio = (now - old).exp()
    if algorithm.ratio == "sequence":
        drift = mean_of_rollout(now.detach() - old, ids) if ids.drift is None else ids.drift
        ratio = drift.exp() * (now - now.detach()).exp()  # of the rollout; each id adds its part of the gradient
    bounded = ratio.clamp(1 - algorithm.low, 1 + algorithm.high)
    if algorithm.cap is None:
        value = torch.minimum(ratio * gained, bounded * gained)
        clipped = ((ratio < bounded) & (gained < 0)) | ((ratio > bounded) & (gained > 0))
    else:
        value = ratio.detach().clamp(max=algorithm.cap) * gained * now
        clipped = (ratio > algorithm.cap) & (gained > 0)
    weight = weights_of(old - ids.sampled, ids, settings) if ids.weight is None else ids.weight
    value, kl = value * weight, torch.zeros_like(now)
    if reference is not None:
        kl = (reference - now).exp() - (reference - now) - 1  # k3: never negative
        value = value - settings.kl_coef * ratio * kl  # the ratio keeps it unbiased: ids are of the old weights
    return -(ids.share * value).sum(), clipped, kl.detach()


def weights_of(difference: Tensor, ids: Ids, settings: Settings) -> Tensor:
    """Return the weight of each id for its `difference`: logprob of training less that of sampling."""
    if settings.correction == "off":
        return torch.ones_like(difference)
    if settings.correction.startswith("sequence"):
        difference = sum_of_rollout(difference, ids)
    ratio = difference.exp()
    if settings.correction.endswith("truncate"):
        return ratio.clamp(max=settings.correction_cap)
    return ratio.masked_fill(ratio > settings.correction_cap, 0.0)


def sum_of_rollout(values: Tensor, ids: Ids) -> Tensor:
    """Return for each id the sum over the ids of its rollout."""
    return values.new_zeros(ids.rollouts).index_add(0, ids.rollout, values)[ids.rollout]


def mean_of_rollout(values: Tensor, ids: Ids) -> Tensor:
    """Return for each id the mean over the ids of its rollout."""
    return sum_of_rollout(values, ids) / sum_of_rollout(torch.ones_like(values), ids)
