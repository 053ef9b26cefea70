"""config.json of published models, as far as it tells their shape."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
_FOUR = {
    **_SMALL,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
QWEN3: dict[str, dict[str, Any]] = {
    "0.6B": _SMALL,
    "4B": _FOUR,
    "8B": {**_FOUR, "hidden_size": 4096, "intermediate_size": 12_288, "tie_word_embeddings": False},
    "30B-A3B": {
        **_FOUR,
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    },
}
