"""The tokenizer of the tiny model: whole template lines and numbers are one token each, everything else is bytes.

It must not know any environment: it is made from texts. Rows stay short (a tool call is six tokens), a number is one
token whose place in the order a tiny model can learn, and any text at all survives encode and decode, because the
256 bytes are in the vocabulary. Control tokens, their flags and the chat template are Qwen3's, so that what is
learnt about rendering here holds for real models.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedTokenizerFast

VOCABULARY_MULTIPLE = 128
# Qwen3 marks the first three special (skipped when decoding without special tokens), the others merely added.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Numbers of up to two digits stand alone; all between two numbers or control tokens is one piece.
PIECES = r"\p{N}{1,2}|[^\p{N}\n]*\n+|[^\p{N}\n]+"
# A piece seen at least this often in the texts becomes a token of its own.
KNOWN_AFTER = 8


def chat_template() -> str:
    """Qwen3's tool template without thinking, as the installed TRL ships it."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the tiny model needs trl: install orl-playground[model]")
    return (Path(spec.origin).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8")


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary knows the pieces that recur in `texts` (rendered transcripts)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    vocabulary = {piece: place for place, piece in enumerate(_vocabulary(texts, split))}
    # Without merges a piece is either known as a whole (ignore_merges) or spelled in bytes.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def _vocabulary(texts: Iterable[str], split: object) -> list[str]:
    """Bytes, two-digit numbers and recurring pieces, in an order that depends on nothing but the texts' set."""
    import re  # noqa: PLC0415
    from collections import Counter  # noqa: PLC0415

    from tokenizers import pre_tokenizers  # noqa: PLC0415

    assert isinstance(split, pre_tokenizers.Sequence)
    controls = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS + ADDED_TOKENS))
    seen: Counter[str] = Counter()
    for text in texts:
        for span in controls.split(text):
            seen.update(piece for piece, _ in split.pre_tokenize_str(span))
    whole = sorted(piece for piece, count in seen.items() if count >= KNOWN_AFTER)
    numbers = [str(number) for number in range(10, 100)]
    return list(dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *numbers, *whole]))
