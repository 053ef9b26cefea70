"""Checkpoints with weights, as Megatron and FSDP save those of the small Qwen3 of tests."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoModelForCausalLM, Qwen3Config

PADDED = 640  # rows of the embedding: Megatron's are a multiple of 128


def weights_of(model: Path) -> dict[str, Tensor]:
    """The weights of a Hugging Face checkpoint, by name."""
    return dict(AutoModelForCausalLM.from_pretrained(model, dtype="float32").state_dict())


def save_torch_dist(model: Path, folder: Path, *, number: int) -> Path:
    """Save the weights of `model` in Megatron's layout, as the step of a `number`."""
    config, weights = Qwen3Config.from_pretrained(model), weights_of(model)
    step = folder / f"iter_{number:07d}"
    _save(_in_megatrons_names(config, weights), step)
    args = Namespace(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        num_experts=None,
        vocab_size=PADDED,
        q_lora_rank=None,
    )
    torch.save({"args": args}, step / "common.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(number), encoding="utf-8")
    return folder


def save_fsdp(model: Path, folder: Path, *, number: int) -> Path:
    """Save the weights of `model` in FSDP's layout, as the step of a `number`."""
    step = folder / f"iter_{number:07d}" / "model"
    _save({"model_state": {"model": weights_of(model)}}, step)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(number), encoding="utf-8")
    return folder


def _save(tree: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process is meant
        save(tree, checkpoint_id=str(folder), no_dist=True)


def _in_megatrons_names(config: Qwen3Config, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with Megatron's names: layers stacked, projections joined, the vocabulary padded."""

    def stacked(*parts: str) -> Tensor:
        layers = range(config.num_hidden_layers)
        return torch.stack([_joined(config, weights, f"model.layers.{layer}.", parts) for layer in layers])

    embedding = weights["model.embed_tokens.weight"]
    rows = torch.zeros(PADDED - len(embedding), config.hidden_size)
    return {
        "embedding.word_embeddings.weight": torch.cat([embedding, rows]),
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": stacked("input_layernorm"),
        "decoder.layers.self_attention.linear_qkv.weight": stacked(*(f"self_attn.{one}_proj" for one in "qkv")),
        "decoder.layers.self_attention.linear_proj.weight": stacked("self_attn.o_proj"),
        "decoder.layers.self_attention.q_layernorm.weight": stacked("self_attn.q_norm"),
        "decoder.layers.self_attention.k_layernorm.weight": stacked("self_attn.k_norm"),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": stacked("post_attention_layernorm"),
        "decoder.layers.mlp.linear_fc1.weight": stacked("mlp.gate_proj", "mlp.up_proj"),
        "decoder.layers.mlp.linear_fc2.weight": stacked("mlp.down_proj"),
    }


def _joined(config: Qwen3Config, weights: Mapping[str, Tensor], layer: str, parts: tuple[str, ...]) -> Tensor:
    found = [weights[f"{layer}{part}.weight"] for part in parts]
    if len(parts) < 3:
        return torch.cat(found)
    heads = config.num_key_value_heads or config.num_attention_heads
    groups = [part.view(heads, -1, config.hidden_size) for part in found]  # q, k, v of each group
    return torch.cat(groups, dim=1).reshape(-1, config.hidden_size)
