"""`python -m benchmarks.bare_host.models CHECKPOINT FOLDER`: three models that play as the playground's tiny model.

FOLDER/heads has 4 heads and 2 key-value heads, so that two GPUs can divide them. What is added has no weight in the
output. FOLDER/experts is that with 8 experts a layer, 2 for each token: the MLP with noise. FOLDER/wide needs memory.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

EXPERTS, CHOSEN, NOISE, ROUTER = 8, 2, 0.05, 0.3
WIDE = {"intermediate_size": 65_536}
OWN = ("architectures", "model_type", "transformers_version", "layer_types")
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
MODEL_FILES = ("config.json", "model.safetensors")


def padded(name: str, weight: Tensor) -> Tensor:
    """Return a weight for twice as many heads."""
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return torch.cat([weight, torch.randn_like(weight) * 0.02])
    return torch.cat([weight, torch.zeros_like(weight)], dim=1) if name.endswith("o_proj.weight") else weight


def widened(name: str, weight: Tensor) -> Tensor:
    """Return a weight for an MLP of WIDE units; what is added has no weight in the output."""
    more = WIDE["intermediate_size"]
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        return torch.cat([weight, torch.randn(more - len(weight), weight.size(1)) * 0.02])
    return functional.pad(weight, (0, more - weight.size(1))) if name.endswith("down_proj.weight") else weight


def of_experts(name: str, shape: torch.Size, dense: dict[str, Tensor], chance: torch.Generator) -> Tensor:
    """Return a weight of the mixture: the dense model's, with noise in each expert."""
    if name == "lm_head.weight":  # SGLang ties no mixture
        return dense["model.embed_tokens.weight"].clone()
    if name in dense:
        return dense[name]
    if name.endswith("mlp.gate.weight"):
        return torch.randn(shape, generator=chance) * ROUTER
    layer, _, part = name.partition(".mlp.experts.")
    parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
    whole = torch.cat([dense[f"{layer}.mlp.{one}.weight"] for one in parts])
    return torch.stack([whole * (1 + NOISE * torch.randn(whole.shape, generator=chance)) for _ in range(EXPERTS)])


def save(source: Path, folder: Path, config: Any, weights: dict[str, Tensor]) -> None:
    """Write a checkpoint, with the tokenizer of `source`."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.load_state_dict(weights)
    model.to(torch.bfloat16).save_pretrained(folder)  # as engines hold them, so that the first sync can be compared
    for file in source.iterdir():
        if file.is_file() and file.name not in MODEL_FILES:
            shutil.copy(file, folder)


def main(source: Path, folder: Path) -> None:
    """Write the three models."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, trust_remote_code=False)
    shape = {name: value for name, value in model.config.to_dict().items() if name not in OWN}
    wide = {name: widened(name, weight) for name, weight in model.state_dict().items()}
    save(source, folder / "wide", Qwen3Config(**shape | WIDE), wide)
    dense = {name: padded(name, weight) for name, weight in model.state_dict().items()}
    save(source, folder / "heads", Qwen3Config(**shape | HEADS), dense)
    mixture = Qwen3MoeConfig(
        **shape | HEADS | {"tie_word_embeddings": False},
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        moe_intermediate_size=shape["intermediate_size"],
        norm_topk_prob=True,
        mlp_only_layers=[],
    )
    empty, chance = AutoModelForCausalLM.from_config(mixture, trust_remote_code=False), torch.Generator().manual_seed(1)
    weights = {name: of_experts(name, one.shape, dense, chance) for name, one in empty.state_dict().items()}
    save(source, folder / "experts", mixture, weights)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
