"""Checkpoints as their publishers lay them out, with small vocabularies."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

from tokenizers import pre_tokenizers

from tests.kit.families import KIMI
from tests.kit.tokenizers import byte_level, template

# In the form of a published one: an intersection of classes, a lookahead, a group of its own case.
PATTERNS = (
    *(r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'ll)?", r"\p{N}{1,3}"),
    *(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
)
CODE = f"""\
raise SystemExit("the code of a checkpoint ran")

class TikTokenTokenizer:
    pat_str = "|".join({PATTERNS!r})

def deep_sort_dict(obj):
    return obj
"""


RESERVED = 5  # ids between the named ones


@cache
def ranks() -> dict[bytes, int]:
    """The tokens of a trained vocabulary as bytes, in the order in which they merge."""
    byte_of = {letter: byte for byte, letter in enumerate_letters()}
    vocabulary = byte_level(KIMI._replace(split="|".join(PATTERNS))).get_vocab()
    ordered = sorted(vocabulary, key=lambda text: vocabulary[text])
    tokens = [bytes(byte_of[letter] for letter in text) for text in ordered]
    alone = [bytes([byte]) for byte in range(256)]  # first, in the order of Mistral's files
    return {token: rank for rank, token in enumerate([*alone, *(token for token in tokens if len(token) > 1)])}


def enumerate_letters() -> list[tuple[int, str]]:
    """The letter that a byte-level tokenizer writes for each byte, asked of the library itself."""
    alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters: dict[int, str] = {}
    for character in map(chr, [*range(0x80), *range(0x80, 0x800), *range(0x800, 0x10FFFF, 0x400)]):
        if not 0xD800 <= ord(character) < 0xE000:
            letters |= dict(zip(character.encode(), alone.pre_tokenize_str(character)[0][0], strict=True))
    never = sorted(set(range(256)) - set(letters))  # bytes that no text in UTF-8 holds
    spare = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(letters.values()))
    return [*letters.items(), *zip(never, spare, strict=True)]


def named() -> dict[int, str]:
    """The added tokens of the converted vocabulary, with a gap."""
    texts = (*KIMI.special, *KIMI.added)
    first = len(ranks())
    return {first + index + (RESERVED if index > 3 else 0): text for index, text in enumerate(texts)}


def kimi(folder: Path, code: str = CODE) -> Path:
    """A checkpoint as Kimi's: tiktoken's file, a configuration that names code, a template."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks().items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    added = {str(token_id): {"content": text, "special": text in KIMI.special} for token_id, text in named().items()}
    tree = {
        "added_tokens_decoder": added,
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer",
        "bos_token": "[BOS]",
        "eos_token": {"content": "<|im_end|>"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tree))
    if code:
        (folder / "tokenization_kimi.py").write_text(code)
    (folder / "chat_template.jinja").write_text(template("kimi_k2"))
    return folder
