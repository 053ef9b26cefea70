"""A checkpoint of a random model of three layers with a real tokenizer, and the weights of any checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from tests.kit.tokenizers import build, template


def write_checkpoint(folder: Path) -> None:
    """Write one whose generation config would spoil the sampling of anyone who heeded it."""
    tokenizer = build(template("qwen3_instruct_2507"))
    end, pad = (tokenizer.get_vocab()[text] for text in ("<|im_end|>", "<|endoftext|>"))
    config = Qwen3Config(
        vocab_size=600,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        tie_word_embeddings=True,
        initializer_range=0.5,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, top_k=3, temperature=0.1, repetition_penalty=1.5, eos_token_id=end
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the checkpoint in `folder`, in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").state_dict()
