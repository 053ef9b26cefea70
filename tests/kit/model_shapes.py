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
_EIGHT_3 = {**_FOUR, "hidden_size": 4096, "intermediate_size": 12_288, "tie_word_embeddings": False}
_FOURTEEN = {
    **_EIGHT_3,
    "hidden_size": 5120,
    "intermediate_size": 17_408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
}
QWEN3: dict[str, dict[str, Any]] = {
    "0.6B": _SMALL,
    "1.7B": {**_SMALL, "hidden_size": 2048, "intermediate_size": 6144},
    "4B": _FOUR,
    "8B": _EIGHT_3,
    "14B": _FOURTEEN,
    "32B": {**_FOURTEEN, "intermediate_size": 25_600, "num_hidden_layers": 64, "num_attention_heads": 64},
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
_EIGHT: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
# config.json and billions of parameters, as the model's card or its paper tells them.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "Qwen3-0.6B": (QWEN3["0.6B"], 0.6),
    "Qwen3-1.7B": (QWEN3["1.7B"], 1.7),
    "Qwen3-4B": (QWEN3["4B"], 4.0),
    "Qwen3-8B": (QWEN3["8B"], 8.2),
    "Qwen3-14B": (QWEN3["14B"], 14.8),
    "Qwen3-32B": (QWEN3["32B"], 32.8),
    "Qwen3-30B-A3B": (QWEN3["30B-A3B"], 30.5),
    "Llama-3.1-8B": ({**_EIGHT, "model_type": "llama", "vocab_size": 128_256}, 8.03),
    "Mistral-7B": ({**_EIGHT, "model_type": "mistral"}, 7.24),
    "Mixtral-8x7B": ({**_EIGHT, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, 46.7),
    "Qwen2.5-7B": (
        {
            **_EIGHT,
            "model_type": "qwen2",
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        7.62,
    ),
    "gemma-2-2b": (
        {
            "model_type": "gemma2",
            "vocab_size": 256_000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
        },
        2.61,
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss",
            "vocab_size": 201_088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "tie_word_embeddings": False,
        },
        20.9,
    ),
    "DeepSeek-V3": (
        {
            "model_type": "deepseek_v3",
            "vocab_size": 129_280,
            "hidden_size": 7168,
            "intermediate_size": 18_432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        671.0,
    ),
}
