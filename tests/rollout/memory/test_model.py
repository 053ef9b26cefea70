"""Parameters counted from a config.json equal those of the models of transformers, in every family."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from orl_core.errors import ConfigError
from orl_rollout.memory.model import FAMILIES, shape_of
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from tests.kit.model_shapes import QWEN3

LAYERS = 4
SMALL = {
    "vocab_size": 1000,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
WIDE = {**SMALL, "head_dim": 24}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
ROUTED = {"n_routed_experts": 6, "first_k_dense_replace": 1}
LATENT = {
    **SMALL,
    **EXPERTS,
    "num_key_value_heads": 4,
    **ROUTED,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, SMALL) for name in FAMILIES if not name.startswith(("gpt", "deepseek", "glm4_moe"))},
    "mlp-bias": ("llama", {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "wide-heads": ("qwen3", WIDE),
    "attention-bias": ("qwen3", {**WIDE, "attention_bias": True}),
    "untied": ("gemma3_text", {**WIDE, "tie_word_embeddings": False}),
    "tied": ("qwen2", {**SMALL, "tie_word_embeddings": True}),
    "dense-between": ("qwen3_moe", {**WIDE, **EXPERTS, "num_experts": 6, "mlp_only_layers": [1]}),
    "every-other": ("qwen3_moe", {**WIDE, **EXPERTS, "num_experts": 6, "decoder_sparse_step": 2}),
    "shared-expert": ("qwen2_moe", {**SMALL, **EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 56}),
    "glm4_moe": ("glm4_moe", {**WIDE, **EXPERTS, **ROUTED, "n_shared_experts": 2}),
    "glm4_moe-normed": ("glm4_moe", {**WIDE, **EXPERTS, **ROUTED, "use_qk_norm": True}),
    "gpt_oss": ("gpt_oss", {**WIDE, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "deepseek_v3": ("deepseek_v3", LATENT),
    "deepseek_v3-plain": ("deepseek_v3", {**LATENT, "q_lora_rank": None}),
    "glm4_moe_lite": ("glm4_moe_lite", {**LATENT, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_count_is_that_of_transformers(case: str):  # shows A16 G19
    family, sizes = CASES[case]
    config: PretrainedConfig = AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(config.to_dict()).parameters == model.num_parameters()
    written = json.loads(config.to_json_string(use_diff=True))  # of a checkpoint: without keys at their defaults
    assert shape_of(written) == shape_of(config.to_dict())


def test_every_family_is_counted():
    assert {family for family, _ in CASES.values()} == FAMILIES.keys()


def test_published_sizes_are_counted():
    """The cards of Qwen3 name 0.6B, 4.0B, 8.2B, and 30.5B of which 3.3B are active."""
    counts = {name: shape_of(config).parameters / 1e9 for name, config in QWEN3.items()}
    assert counts == pytest.approx({"0.6B": 0.596, "4B": 4.02, "8B": 8.19, "30B-A3B": 30.5}, rel=0.01)
    mixture = shape_of(QWEN3["30B-A3B"])
    active = mixture.parameters - mixture.expert_parameters * (1 - 8 / 128)
    assert active / 1e9 == pytest.approx(3.3, rel=0.02)


def test_images_and_text_count_by_the_text():
    text = {"model_type": "qwen3", **SMALL}
    assert shape_of({"model_type": "whatever_vl", "text_config": text}) == shape_of(text)


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"model_type": "qwen3_next"}, "qwen3_next"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
    ],
)
def test_config_without_a_shape_is_refused(changes: dict[str, Any], subject: str):
    with pytest.raises(ConfigError, match=subject):
        shape_of({"model_type": "qwen3", **SMALL, **changes})


def test_adapters_count_inputs_and_outputs():
    shape = shape_of({"model_type": "qwen3", **WIDE})
    attention = (48 + 96) * 2 + (48 + 48) * 2
    assert shape.adapted == LAYERS * (attention + 3 * (48 + 80))
