"""The tiny model: Qwen3's architecture at well under a million parameters, untrained.

It must not know its game. Its shape is a real model's in small (head_dim 64, tied embeddings, a vocabulary that is a
multiple of 128), so that engines and kernels made for real models run it. To learn within a minute, its weights are as
large as their width asks for, and the embeddings of numbers begin as points on sine waves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from orl_playground.tiny_tokenizer import NUMBERS, VOCABULARY_MULTIPLE, build_tokenizer, texts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

HIDDEN, LAYERS, HEADS, KEY_HEADS, MLP = 96, 3, 2, 1, 256
WAVE_PERIODS = (6, 10, 14, 18, 22, 26, 32, 40, 50, 64, 80, 100, 130, 160)
WAVE_HEIGHT = 0.3
EMBEDDING_DEVIATION = 0.05


def write_tiny_model(folder: Path, chats: Sequence[Mapping[str, Any]], seed: int) -> None:
    """Write an untrained model of less than a million parameters, whose tokenizer knows the words of `chats`.

    A chat has `messages` and `tools`, as chat templates read them. It needs torch and transformers.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = build_tokenizer(texts_of(chats))
    build_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised fp32 model for `tokenizer`; the same seed gives the same weights."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    end, padding = (tokenizer.get_vocab()[token] for token in ("<|im_end|>", "<|endoftext|>"))
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
        eos_token_id=end,
        pad_token_id=padding,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    chance = torch.Generator().manual_seed(seed)
    embedding = model.model.embed_tokens.weight
    with torch.no_grad():
        for weight in model.parameters():
            if weight is embedding:
                weight.normal_(0.0, EMBEDDING_DEVIATION, generator=chance)
            elif weight.dim() == 2:
                weight.normal_(0.0, weight.shape[1] ** -0.5, generator=chance)
        _put_numbers_on_waves(embedding, tokenizer)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, eos_token_id=end, pad_token_id=padding)
    return model


def _put_numbers_on_waves(embedding: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    """Overwrite the first coordinates of every number's embedding by sines and cosines of the number."""
    for number in range(NUMBERS):
        place = tokenizer.convert_tokens_to_ids(str(number))
        waves = [
            WAVE_HEIGHT * wave(2 * math.pi * number / period)
            for period in WAVE_PERIODS
            for wave in (math.sin, math.cos)
        ]
        embedding[place, : len(waves)] = embedding.new_tensor(waves)
