"""The tiny model: Qwen3's architecture at well under a million parameters, untrained.

It must not know its game. Its shape is a real model's in small (head_dim 64, tied embeddings, a vocabulary that is a
multiple of 128), so that engines and kernels made for real models run it. To learn within a minute, its weights are as
large as their width asks for, and the embeddings of numbers begin as points on sine waves.

Its tokenizer knows no environment either: it is made from texts, of which lines and numbers are one token each. There,
a tool call is seven tokens. Lines of other environments become common words, the JSON of tools and calls, and bytes:
any text survives encode and decode. Control tokens, their flags and the chat template are Qwen3's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast
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
