"""The tokenizer of the tiny model: whole template lines and numbers are one token each, everything else is bytes.

It must not know any environment: it is made from texts. A tool call is seven tokens. Any text survives encode and
decode, because the 256 bytes are in the vocabulary. Control tokens, their flags and the chat template are Qwen3's.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

VOCABULARY_MULTIPLE = 128
# Qwen3 marks the first three special (skipped when decoding without special tokens), the others merely added.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
# The numbers below this one are single tokens.
NUMBERS = 100
# A number, a line's end with what precedes it, or the text between.
PIECES = r"\p{N}{1,2}|[^\p{N}\n]*\n+|[^\p{N}\n]+"
# A piece seen at least this often in the texts becomes a token of its own.
KNOWN_AFTER = 8


def chat_template() -> str:
    """Qwen3's tool template without thinking, as the installed TRL ships it."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the tiny model needs trl")
    return (Path(spec.origin).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8")


def texts_of(chats: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return conversations as the chat template renders them."""
    template: Any = build_tokenizer([])
    return [template.apply_chat_template(chat["messages"], tools=chat["tools"], tokenize=False) for chat in chats]


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary knows the pieces that recur in `texts` (rendered transcripts)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    numbers = [str(number) for number in range(NUMBERS)]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *numbers, *_recurring(texts, split)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    # Without merges a piece is either known as a whole (ignore_merges) or spelled in bytes.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED_TOKENS])
    padding, _, closing = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=closing, pad_token=padding, model_max_length=4096
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def _recurring(texts: Iterable[str], split: PreTokenizer) -> list[str]:
    """The pieces between control tokens that recur, sorted, so that the vocabulary does not depend on the order."""
    controls = re.compile("|".join(map(re.escape, SPECIAL_TOKENS + ADDED_TOKENS)))
    seen: Counter[str] = Counter()
    for text in texts:
        for span in controls.split(text):
            seen.update(piece for piece, _ in split.pre_tokenize_str(span))
    return sorted(piece for piece, count in seen.items() if count >= KNOWN_AFTER)
