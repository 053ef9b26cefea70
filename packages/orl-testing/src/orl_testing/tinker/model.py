"""The model behind the stand-in for Tinker: a checkpoint with LoRA at every linear layer, losses, Adam, sampling.

Torch and peft alone: it knows nothing of HTTP. Losses are sums over the target ids, as Tinker documents them. A tied
output embedding gets no adapter.
"""

# pyright: basic
# torch and peft are typed in part
from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

import torch
from msgspec import Struct
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

ALPHA = 32
PASS_IDS = 16384  # ids of one forward pass
# The keys and values of earlier ids, in arguments and in answers; transformers renamed them in 5.24.
CACHE = {"cache", "past_key_values"}.intersection(one.name for one in dataclasses.fields(CausalLMOutputWithPast)).pop()
Weights = dict[str, Tensor]
Loss = Callable[["Row", Tensor, Mapping[str, float]], Tensor]


class Row(Struct, frozen=True, kw_only=True):
    """One datum of a forward pass: N ids, and the loss's inputs by name, each of N numbers."""

    ids: tuple[int, ...]
    inputs: dict[str, Tensor]


class Draw(Struct, frozen=True, kw_only=True):
    """One request for a continuation of `ids`."""

    ids: tuple[int, ...]
    most: int
    stops: frozenset[int]
    seed: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Drawn(Struct, frozen=True, kw_only=True):
    """The ids that were drawn, each with its logprob at the temperature; `stopped` by an id, or else at the length."""

    ids: list[int]
    logprobs: list[float]
    stopped: bool


def _ratio(row: Row, logprobs: Tensor) -> Tensor:
    return (logprobs - row.inputs["logprobs"]).exp()


def _clip(ratio: Tensor, config: Mapping[str, float]) -> Tensor:
    return ratio.clamp(config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2))


def importance_sampling(row: Row, logprobs: Tensor, config: Mapping[str, float]) -> Tensor:
    """Return the loss of the ids of one row: the ratio of both policies times the advantage."""
    return -_ratio(row, logprobs) * row.inputs["advantages"]


def ppo(row: Row, logprobs: Tensor, config: Mapping[str, float]) -> Tensor:
    """Return the clipped loss of PPO."""
    ratio, advantages = _ratio(row, logprobs), row.inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, config) * advantages)


def cispo(row: Row, logprobs: Tensor, config: Mapping[str, float]) -> Tensor:
    """Return the loss of CISPO: the clipped ratio is a constant weight."""
    return -_clip(_ratio(row, logprobs), config).detach() * logprobs * row.inputs["advantages"]


LOSSES: dict[str, Loss] = {one.__name__: one for one in (importance_sampling, ppo, cispo)}


class Adapted:
    """A checkpoint with adapters that train, and the state of their optimizer."""

    def __init__(self, checkpoint: str, rank: int, seed: int | None) -> None:
        self.checkpoint, self.rank = checkpoint, rank
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32", trust_remote_code=False)
        torch.manual_seed(0 if seed is None else seed)
        lora = LoraConfig(r=rank, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
            self.model: Any = get_peft_model(model, lora)
        self.trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained)

    def weights(self) -> Weights:
        """Return a copy of the adapters."""
        return {name: one.detach().clone() for name, one in get_peft_model_state_dict(self.model).items()}

    def load(self, weights: Weights) -> None:
        """Replace the adapters."""
        set_peft_model_state_dict(self.model, {name: one.clone() for name, one in weights.items()})

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        own = {"checkpoint": self.checkpoint, "rank": self.rank, "weights": self.weights()}
        return {**own, "optimizer": self.optimizer.state_dict()}

    def forward_backward(
        self, rows: Sequence[Row], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        """Add the gradient of the summed loss. Return the loss, and the logprobs of each row's targets."""
        self.model.train()
        order = sorted(range(len(rows)), key=lambda place: len(rows[place].ids))
        total, by_place, start = 0.0, {}, 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(rows[order[end]].ids) <= PASS_IDS:
                end += 1
            places, start = order[start:end], end
            logprobs = self._logprobs([rows[place] for place in places])
            losses = [LOSSES[loss](rows[place], own, config).sum() for place, own in zip(places, logprobs, strict=True)]
            summed = torch.stack(losses).sum()
            if backward:
                summed.backward()
            total += float(summed.detach())
            by_place |= {place: own.detach() for place, own in zip(places, logprobs, strict=True)}
        return total, [by_place[place] for place in range(len(rows))]

    def _logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        ids = pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
        mask = pad_sequence([torch.ones(len(row.ids), dtype=torch.long) for row in rows], batch_first=True)
        scores = torch.log_softmax(self.model(input_ids=ids, attention_mask=mask).logits.float(), dim=-1)
        return [
            scores[at, : len(row.ids)].gather(1, row.inputs["target_tokens"].long()[:, None])[:, 0]
            for at, row in enumerate(rows)
        ]

    def step(self, adam: Mapping[str, float]) -> dict[str, float]:
        """Make one step of AdamW on the gradient so far. Return its norm before clipping."""
        for group in self.optimizer.param_groups:
            group.update(lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["eps"])
            group["weight_decay"] = adam["weight_decay"]
        most = adam.get("grad_clip_norm") or torch.inf
        norm = float(clip_grad_norm_(self.trained, most))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"unclipped_grad_l2:mean": norm}


@torch.no_grad()
def draw(model: Any, requests: Sequence[Draw]) -> list[Drawn]:
    """Continue each request by ids of its own seed."""
    model.eval()
    width = max(len(one.ids) for one in requests)
    ids = torch.tensor([[0] * (width - len(one.ids)) + list(one.ids) for one in requests])
    mask = torch.tensor([[0] * (width - len(one.ids)) + [1] * len(one.ids) for one in requests])
    chance = [Random(one.seed) for one in requests]  # noqa: S311 - no secret is drawn
    temperatures = torch.tensor([[one.temperature or 1.0] for one in requests])
    drawn = [Drawn(ids=[], logprobs=[], stopped=False) for _ in requests]
    ended = [False] * len(requests)
    cache: Any = None
    for count in range(1, max(one.most for one in requests) + 1):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        answer = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{CACHE: cache})
        cache = answer[CACHE]
        scores = torch.log_softmax(answer.logits[:, -1].float() / temperatures, dim=-1)
        chosen = _choose(scores, requests, chance)
        logprobs = scores.gather(1, chosen[:, None])[:, 0].tolist()
        for at, (one, token) in enumerate(zip(requests, cast("list[int]", chosen.tolist()), strict=True)):
            if not ended[at]:
                drawn[at].ids.append(token)
                drawn[at].logprobs.append(logprobs[at])
                drawn[at] = Drawn(ids=drawn[at].ids, logprobs=drawn[at].logprobs, stopped=token in one.stops)
                ended[at] = drawn[at].stopped or count >= one.most
        if all(ended):
            break
        ids = chosen[:, None]
        mask = torch.cat([mask, torch.ones(len(requests), 1, dtype=torch.long)], dim=1)
    return drawn


def _choose(scores: Tensor, requests: Sequence[Draw], chance: Sequence[Random]) -> Tensor:
    """Return one id for each row of logprobs [B, V], by a random number of the row's own."""
    odds = scores.double().exp()
    for at, request in enumerate(requests):
        if request.top_k > 0 or request.top_p < 1.0 or request.temperature == 0.0:
            odds[at] = _likely(odds[at], request)
    cumulative = odds.cumsum(1)
    points = torch.tensor([[one.random()] for one in chance], dtype=torch.double) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True)[:, 0].clamp(max=scores.shape[1] - 1)


def _likely(odds: Tensor, request: Draw) -> Tensor:
    """Return `odds` [V] with 0 for the ids that `request` leaves out."""
    ordered, ids = odds.sort(descending=True)
    count = len(ordered) if request.top_k <= 0 else request.top_k
    if request.top_p < 1.0:
        count = min(count, int((ordered.cumsum(0) < request.top_p).sum()) + 1)
    kept = ids[: 1 if request.temperature == 0.0 else count]
    return torch.zeros_like(odds).scatter(0, kept, odds[kept])
