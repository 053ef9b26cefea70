"""`python -m benchmarks.throughput_model FOLDER`: a model's shape without its weights, and a tokenizer for it.

For engines that fill in weights by chance (SGLang's `--load-format dummy`). The shape is Qwen3-1.7B's. The tokenizer
has Qwen3's control tokens and template; every id but the 256 bytes is a word of four characters that no neighbour
can merge with. So what such a model says, which is any id at all, decodes, and encodes to the same ids again: a client
that exchanges text meets the engine with the same lengths and prefixes as one that exchanges ids. The exception is a
lone byte above 127, one id in 1,200, which becomes the three of U+FFFD.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.kit.tokenizers import template

VOCABULARY = 151_936
CONTEXT = 40_960
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": CONTEXT,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "rope_scaling": None,
    "sliding_window": None,
    "use_cache": True,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}


def words(count: int, seed: int) -> list[str]:
    """`count` different words of three letters or digits, in an order of chance."""
    every = ["".join(letters) for letters in itertools.product(string.ascii_letters + string.digits, repeat=3)]
    return random.Random(seed).sample(every, count)


def make_tokenizer(seed: int = 0, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """The tokenizer: every id below `vocabulary` decodes, and a word (with the space before it) is one id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    count = vocabulary - len(alphabet) - len(SPECIAL) - len(ADDED)
    pieces = [*alphabet, *(f"Ġ{word}" for word in words(count, seed))]
    # Without merges a piece is either known as a whole (ignore_merges) or spelled in bytes.
    model = models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], ignore_merges=True)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" [0-9A-Za-z]{3}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    padding, _, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end, pad_token=padding, model_max_length=CONTEXT
    )
    tokenizer.chat_template = template("qwen3_instruct_2507")
    return tokenizer


def make_model(folder: Path, seed: int = 0, vocabulary: int = VOCABULARY) -> None:
    """Write the tokenizer and config.json into `folder`."""
    tokenizer = make_tokenizer(seed, vocabulary)
    tokenizer.save_pretrained(folder)
    ids = tokenizer.get_vocab()
    shape = {
        **SHAPE,
        "vocab_size": vocabulary,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    make_model(chosen.folder, chosen.seed)
