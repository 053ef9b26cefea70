"""Attention of torch's SDPA for Megatron's local layers, which keeps packed sequences apart.

Context parallelism gathers keys and values: `--cp-comm-type all_gather`. slime gives rank r of n the chunks r and
2n - 1 - r of each sequence, of 2n.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from megatron.core import mpu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from torch import Tensor
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import scaled_dot_product_attention


class PackedAttention(torch.nn.Module):
    """Core attention. Queries, keys and values are [tokens, heads, width] if packed."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **more: Any) -> None:
        super().__init__()
        self.config = config
        self.scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any = None, **more: Any
    ) -> Tensor:
        if packed_seq_params is None:  # [tokens, rows, heads, width]
            answer = self._attend(*(one.permute(1, 2, 0, 3) for one in (query, key, value)), is_causal=True)
            return answer.permute(2, 0, 1, 3).flatten(2)
        ranks, rank = mpu.get_context_parallel_world_size(), mpu.get_context_parallel_rank()
        keys, values = [key], [value]
        if ranks > 1:
            group = mpu.get_context_parallel_group()
            keys, values = (list(all_gather(one.contiguous(), group=group)) for one in (key, value))
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        parts = [
            self._sequence(query, keys, values, begin // ranks, end // ranks, rank)
            for begin, end in pairwise(bounds)
            if end > begin
        ]
        joined = torch.cat(parts)
        rest = query.new_zeros(query.size(0) - joined.size(0), *joined.shape[1:])
        return torch.cat([joined, rest]).flatten(1)

    def _sequence(
        self, query: Tensor, keys: list[Tensor], values: list[Tensor], begin: int, end: int, rank: int
    ) -> Tensor:
        ranks, half = len(keys), (end - begin) // 2
        own = query[begin:end].transpose(0, 1)[None]
        if ranks == 1:
            key, value = (one[0][begin:end].transpose(0, 1)[None] for one in (keys, values))
            return self._attend(own, key, value, is_causal=True)[0].transpose(0, 1)
        whole = [
            torch.cat([*(one[begin : begin + half] for one in all_), *(one[begin + half : end] for one in all_[::-1])])
            for all_ in (keys, values)
        ]
        places = torch.arange(2 * ranks * half, device=query.device)
        chunks = places.view(2 * ranks, half)
        mask = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])[:, None] >= places[None]
        key, value = (one.transpose(0, 1)[None] for one in whole)
        return self._attend(own, key, value, attn_mask=mask)[0].transpose(0, 1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        return scaled_dot_product_attention(query, key, value, enable_gqa=True, scale=self.scale, **how)


def get_spec(args: Any, config: Any, vp_stage: int | None = None) -> Any:
    """Return Megatron's local layers with this attention."""
    spec = get_gpt_layer_local_spec(
        num_experts=args.num_experts, moe_grouped_gemm=False, qk_layernorm=args.qk_layernorm, normalization="RMSNorm"
    )
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return spec
