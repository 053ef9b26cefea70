"""Families of models, by `model_type` of a config.json: which parameters a layer has beside its large matrices.

Sources are the classes of transformers 5; `tests/core/memory/test_shape.py` counts their parameters. A family that is
not listed is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Bias = Literal["never", "always", "config"]  # "config": as the key `attention_bias` says


class Family(Struct, frozen=True, kw_only=True):
    """The small parameters of a layer, and the defaults of keys that a config.json leaves out.

    `bias` is that of the projections of queries, keys and values, `out_bias` that of the attention's output. `norms` is
    the number of norms over the hidden size in a layer. `qk_norm` is the width of the norms of queries and keys: one
    head, or all of them. `sinks` adds a number for each head. `latent` has the attention of DeepSeek-V3, whose cache is
    a latent vector. `expert_bias` gives router and experts their biases. `shared_gate` adds a gate of hidden size to
    the shared expert. `tied` is the default of `tie_word_embeddings`.
    """

    bias: Bias = "never"
    out_bias: Bias = "never"
    norms: int = 2
    qk_norm: Literal["", "head", "all"] = ""
    sinks: bool = False
    latent: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    tied: bool = False


_LLAMA = Family(bias="config", out_bias="config")
_QWEN3 = Family(bias="config", out_bias="config", qk_norm="head")
_LATENT = Family(latent=True)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": Family(bias="config", out_bias="config", tied=True),
    "mistral": Family(),
    "ministral3": Family(),
    "mixtral": Family(),
    "phi3": Family(),
    "seed_oss": Family(bias="config"),
    "qwen2": Family(bias="always"),
    "qwen2_moe": Family(bias="always", shared_gate=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "glm": Family(bias="config"),
    "glm4": Family(bias="config", norms=4),
    "glm4_moe": Family(bias="config"),
    "glm4_moe_lite": _LATENT,
    "deepseek_v3": _LATENT,
    "minimax_m2": Family(qk_norm="all"),
    "olmo2": Family(bias="config", out_bias="config", qk_norm="all"),
    "olmo3": Family(bias="config", out_bias="config", qk_norm="all"),
    "exaone4": Family(qk_norm="head"),
    "gemma2": Family(bias="config", out_bias="config", norms=4, tied=True),
    "gemma3_text": Family(bias="config", out_bias="config", norms=4, qk_norm="head", tied=True),
    "cohere2": Family(bias="config", out_bias="config", norms=1, tied=True),
    "gpt_oss": Family(bias="config", out_bias="config", sinks=True, expert_bias=True),
}
