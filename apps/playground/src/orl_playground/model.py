"""The tiny model: Qwen3's architecture at under half a million parameters, untrained.

It must not know what it will play. Its shape is a real model's in small (head_dim 64, tied embeddings, a vocabulary
that is a multiple of 128), so that engines and kernels made for real models run it, on CPU or GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_playground.tokenizer import VOCABULARY_MULTIPLE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

HIDDEN, LAYERS, HEADS, KEY_HEADS, MLP = 96, 3, 4, 2, 256


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised fp32 model for `tokenizer`; the same seed gives the same weights."""
    import torch  # noqa: PLC0415
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=64,
        intermediate_size=MLP,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model
