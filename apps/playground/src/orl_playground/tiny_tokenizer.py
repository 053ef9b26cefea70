"""The tokenizer of the tiny model: lines that it was made from, and numbers, are one token each.

It must not know any environment: it is made from texts. There, a tool call is seven tokens. Lines of other environments
become common words, the JSON of tools and calls, and bytes: the fewest tokens. Any text survives encode and decode,
because the 256 bytes are in the vocabulary. Control tokens, their flags and the chat template are Qwen3's.
"""

from __future__ import annotations

import re
from collections import Counter
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
# The JSON in which the template writes tools and calls.
JSON = (
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"description": "',
    '", "parameters": {"properties": {"',
    '", "properties": {"',
    '": {"description": "',
    '": {"title": "',
    '", "title": "',
    '", "type": "',
    '", "enum": ["',
    '", "',
    '"}, "',
    '"}}, "required": ["',
    '"], "title": "',
    '", "type": "object"}}}\n',
    "integer",
    "boolean",
    "string",
    '{"name": "',
    '", "arguments": {"',
    '", "arguments": {}}\n',
    '": ',
    '": "',
    ', "',
    "}}\n",
    '"}}\n',
    "true",
    "false",
    "null",
)
# Each is a token after a space, and with a small and a capital letter at the beginning of a line or value.
WORDS = """
a about above add after again all already an and another answer any are as ask at back be been before begin below best
better between big black block blue board both box buy by call can card change check choose city close coin cold color
come cost count cut day deck direction do done door down draw drop each east empty end enter equal every exit false
far few fewer field file find first five for four free from full game get give go goal gold good green guess hand has
have he high higher highest hit hold hot how if in into is it item keep key last least leave left less letter light
limit line list long look lose lost low lower lowest make many match me middle miss money more most move much must
name near next no none north not now number odd of off offer old on once one only open or order other out over part
pass path pay pick place play player point position previous price put question range reach read red remain rest
result right room round row run same say score search second see select sell send set she short show side size small
so some south space start state stay step still stop sum take target task tell text than that the their them then
there they this three time to too tool total true turn two up use value wait walk wall want was way we west what when
where which white whole who will win wins with word work write wrong yes you your zero
"""


def chat_template() -> str:
    """Return a chat template with tools, in the format of Qwen3 without thinking."""
    return Path(__file__).with_name("chatml.jinja").read_text(encoding="utf-8")


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
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *numbers, *_recurring(texts, split), *_common()]
    # Each piece costs the same, so a text becomes the fewest.
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in dict.fromkeys(pieces)], unk_id=0))
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


def _common() -> list[str]:
    """The pieces that tools, calls and prompts of any environment are made of, written as bytes are."""
    from tokenizers import pre_tokenizers

    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = [form for word in WORDS.split() for form in (f" {word}", word, word.capitalize())]
    return ["".join(piece for piece, _ in bytes_of.pre_tokenize_str(text)) for text in (*JSON, *words)]


def _recurring(texts: Iterable[str], split: PreTokenizer) -> list[str]:
    """The pieces between control tokens that recur, sorted, so that the vocabulary does not depend on the order."""
    controls = re.compile("|".join(map(re.escape, SPECIAL_TOKENS + ADDED_TOKENS)))
    seen: Counter[str] = Counter()
    for text in texts:
        for span in controls.split(text):
            seen.update(piece for piece, _ in split.pre_tokenize_str(span))
    return sorted(piece for piece, count in seen.items() if count >= KNOWN_AFTER)
