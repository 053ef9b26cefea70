"""`python -m benchmarks.throughput_model FOLDER`: a model's shape without its weights, and a tokenizer for it.

For engines that fill in weights by chance (SGLang's `--load-format dummy`). The shape is Qwen3-1.7B's. The tokenizer
has Qwen3's control tokens and template; every id but the 256 bytes is a word of four characters that no neighbour
can merge with. So what such a model says, which is any id at all, decodes, and a text has as many ids as words.
"""

from __future__ import annotations

import itertools
import random
import string
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from tests.kit.tokenizers import template

VOCABULARY = 151_936
CONTEXT = 40_960
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def words(count: int) -> list[str]:
    """`count` different words of three letters or digits, in an order of chance."""
    every = ["".join(letters) for letters in itertools.product(string.ascii_letters + string.digits, repeat=3)]
    return random.Random(0).sample(every, count)


def make_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """The tokenizer: every id below `vocabulary` decodes, and a word (with the space before it) is one id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    count = vocabulary - len(alphabet) - len(SPECIAL) - len(ADDED)
    pieces = [*alphabet, *(f"Ġ{word}" for word in words(count))]
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


def make_model(folder: Path, vocabulary: int = VOCABULARY) -> None:
    """Write the tokenizer and config.json into `folder`."""
    tokenizer = make_tokenizer(vocabulary=vocabulary)
    tokenizer.save_pretrained(folder)
    ids = tokenizer.get_vocab()
    config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=vocabulary,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
