"""Logprobs of the trained ids of a micro-batch, without the logits of all positions.

A hook takes the last hidden states as they reach the output matrix. Logits are computed for trained ids only, in chunks
that the backward pass computes again, so that no matrix of all ids and the vocabulary is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from orl_core.errors import ConfigError
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from orl_local.batch import Batch
from orl_local.engine.lora import base_of

CHUNK = 3 << 23  # logits that are computed at once
CHECKED = 1e-3  # greatest difference of two ways to compute the same logits, relative to the largest


class Scores(Struct, frozen=True, kw_only=True):
    """Logprobs and entropies of trained ids, float32 [N], and the loss of the routers, [], if the model has one."""

    logprobs: Tensor
    entropies: Tensor
    router_loss: Tensor | None = None


class Scorer:
    """Computes logprobs of `model`, divided by `temperature`, in bf16 on a GPU and in fp32 on a CPU.

    Raises:
        ConfigError: the model changes its logits in a way that is not known here.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        config = base_of(model).config.get_text_config()
        self._model, self._temperature = model, temperature
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._head: Any = base_of(model).get_output_embeddings()
        self.routes = bool(getattr(config, "output_router_logits", False))
        self.router_weight = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0)
        self._check()

    def __call__(self, batch: Batch) -> Scores:
        """Return the scores of the trained ids of `batch`, in its order."""
        with self.precision():
            hidden, output = self._hidden(batch.token_ids, batch.mask)
            hidden, targets = hidden[batch.row, batch.column - 1], batch.token_ids[batch.row, batch.column]
            size = max(1, CHUNK // self._head.weight.shape[0])
            pieces = zip(hidden.split(size), targets.split(size), strict=True)
            whole = len(targets) <= size or not torch.is_grad_enabled()
            score: Callable[..., tuple[Tensor, Tensor]] = self._score
            scores = [
                score(*piece) if whole else checkpoint(score, *piece, use_reentrant=False)  # pyright: ignore[reportGeneralTypeIssues]
                for piece in pieces
            ]
        logprobs, entropies = (torch.cat(values) for values in zip(*scores, strict=True))
        return Scores(logprobs=logprobs, entropies=entropies, router_loss=output.aux_loss if self.routes else None)

    def precision(self, *, kept: bool = True) -> torch.autocast:
        """Compute in bf16 on a GPU. Each weight is cast once while the outermost block runs, so it must not change.

        Casts that are not `kept` are made for each use: those of sharded weights would be whole weights.
        """
        on_gpu = self._model.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16, enabled=on_gpu, cache_enabled=kept)

    def _hidden(self, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        """Return the last hidden states [B, T, H], and the output of the model for one position of each row."""
        taken: list[Tensor] = []

        def take(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            taken.append(inputs[0])
            return (inputs[0][:, :1], *inputs[1:])

        hook = self._head.register_forward_pre_hook(take)
        more: dict[str, Any] = {"output_router_logits": True, "attention_mask": mask} if self.routes else {}
        try:
            with self.precision(kept=not isinstance(self._model, FSDPModule)):
                output = self._model(input_ids=token_ids, use_cache=False, **more)
        finally:
            hook.remove()
        return taken[0], output

    def _score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return logprobs and entropies [n] of `targets` [n] for hidden states [n, H]."""
        logits = self._logits(hidden)
        if self._scale != self._temperature:
            logits = logits * (self._scale / self._temperature)
        whole = logits.logsumexp(-1)
        logprobs = logits.gather(-1, targets[:, None])[:, 0] - whole
        with torch.no_grad():
            entropies = whole - (logits - whole[:, None]).exp_().mul_(logits).sum(-1)  # one array of this size
        return logprobs, entropies

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden).float()
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    @torch.no_grad()
    def _check(self) -> None:
        """Refuse a model whose own logits are others: those of one id are computed in both ways."""
        one = torch.ones(1, 1, dtype=torch.long, device=self._model.device)
        with self.precision():
            hidden, output = self._hidden(one, one)
            own, its = self._logits(hidden[0]), output.logits[0].float()
        scale = float((own * its).sum() / (own * own).sum())
        self._scale = scale if abs(scale - 1) > CHECKED else 1.0  # some models multiply by a constant
        own = own * self._scale
        if not torch.allclose(own, its, rtol=0.0, atol=CHECKED * float(its.abs().max() + 1)):
            kind = base_of(self._model).config.model_type
            raise ConfigError(
                f"a model of the kind {kind} changes its logits after the output matrix. Use `orl train trl`"
            )
