"""Small tokenizers built from fixed texts, with chat templates in published formats: real merges and control tokens.

Byte-level BPE with the family's pre-tokenizer, and its control tokens with their special flags. tests/templates holds
small templates of ours. The others are those of the installed TRL: a test that reads one is marked `published`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from orl_core.config import RunConfig
from orl_core.render import Renderer
from orl_rollout.tokenizer import tokenizer as of_run
from orl_rollout.tokenizer.chat_template import ChatTemplate
from orl_rollout.tokenizer.tokenizer import HFTokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
)
QWEN25_ADDED = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_suffix|>", "<|file_sep|>")
QWEN3_ADDED = (*QWEN25_ADDED, "<tool_response>", "</tool_response>", "<think>", "</think>")
CORPUS = [
    "The door is locked.\n\nWho was in the room?\n",
    '{"name": "guess", "arguments": {"number": 42}}\n',
    "You are a helpful assistant. # Tools\n\nYou may call one or more functions.\n",
    "It's a note: the key is under the mat.\n- one\n- two\n\n\n",
    "user\nassistant\nsystem\ntool_call tool_response think im_end im_start <tool> </tool> <| |> |>\n",
    "Привет, мир. 漢字 café 😀\r\n",
]


OURS = Path(__file__).parents[1] / "templates"


def template(name: str) -> str:
    """Return our template of this name, or the published one that TRL has under it."""
    ours = OURS / f"{name}.jinja"
    return ours.read_text(encoding="utf-8") if ours.exists() else published_template(name)


def published_template(name: str) -> str:
    spec = find_spec("trl")
    assert spec is not None, f"mark this test `published`: the template `{name}` comes with TRL"
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


class Vocabulary(NamedTuple):
    """A family's control tokens, by their special flag, and how it cuts text."""

    special: tuple[str, ...] = QWEN_SPECIAL
    added: tuple[str, ...] = QWEN3_ADDED
    eos: str = "<|im_end|>"
    bos: str | None = None
    stops: tuple[str, ...] = ("<|endoftext|>",)
    split: str = QWEN_SPLIT  # empty: SentencePiece's marks instead of bytes
    normalized: bool = True


QWEN = Vocabulary()


def build(
    chat_template: str,
    added: tuple[str, ...] = QWEN3_ADDED,
    vocabulary: Vocabulary = QWEN,
    texts: Sequence[str] = (),
    size: int = 4096,
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of about 700 tokens with this chat template; of `size` and more if it is built for `texts`."""
    backend = byte_level(vocabulary, texts, size) if vocabulary.split else sentence_piece()
    added = added if vocabulary is QWEN else vocabulary.added
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in vocabulary.special])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    names = {"eos_token": vocabulary.eos} | ({"bos_token": vocabulary.bos} if vocabulary.bos else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=4096, **names)
    tokenizer.chat_template = chat_template
    return tokenizer


def byte_level(vocabulary: Vocabulary, texts: Sequence[str] = (), size: int = 4096) -> Tokenizer:
    """Byte-level BPE without added tokens, made for CORPUS or for other `texts`."""
    backend = Tokenizer(models.BPE())
    if vocabulary.normalized:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(vocabulary.split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = size if texts else 640
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet, min_frequency=2)
    backend.train_from_iterator(texts or CORPUS * 4, trainer)
    return backend


def sentence_piece(scheme: str = "first") -> Tokenizer:
    """SentencePiece's BPE with byte fallback, without added tokens; `scheme` says where a text begins with a mark."""
    backend = Tokenizer(models.BPE(byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)  # type: ignore[arg-type]
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=640, show_progress=False, special_tokens=fallback, min_frequency=2)
    backend.train_from_iterator(CORPUS * 4, trainer)
    written = json.loads(backend.to_str())
    return Tokenizer.from_str(json.dumps(written | {"added_tokens": []}))


@cache
def tokenizer(name: str = "qwen3", *, thinking: bool = False) -> HFTokenizer:
    """The renderer's tokenizer with a published template; Qwen2.5 has no tokens for results and reasoning."""
    added = QWEN25_ADDED if name.startswith("qwen2_5") else QWEN3_ADDED
    hf = build(template(name), added)
    return HFTokenizer(hf, thinking=thinking, stop_ids=[hf.get_vocab()["<|endoftext|>"]])


@cache
def renderer_of(name: str = "qwen3", *, thinking: bool = False) -> Renderer:
    """Return the renderer of `tokenizer`: one for all tests of a process, because its certificate takes a second."""
    return Renderer(tokenizer(name, thinking=thinking))


def made(text: str, **settings: Any) -> ChatTemplate:
    """Return the chat template `text` with these settings."""
    return ChatTemplate(text, special_tokens={"bos_token": "<s>"}, **settings)


# The settings of a run that its tokenizer and its renderer read.
SETTINGS = (
    *("thinking", "tool_format", "chat_template", "chat_template_kwargs", "chat_template_date", "stop_tokens"),
    "system_prompt_template",
)
_opened: dict[object, Any] = {}


def open_once(name: str) -> Callable[[RunConfig, Any], Any]:
    """Return the function `name` of a run that works once a process for equal settings and checkpoint."""
    function: Callable[[RunConfig, Any], Any] = getattr(of_run, name)

    def opened(config: RunConfig, of: Any) -> Any:
        settings = [getattr(config, field) for field in SETTINGS]
        key = (name, Path(of).absolute() if isinstance(of, str) else of, repr(settings))
        if key not in _opened:
            _opened[key] = function(config, of)
        return _opened[key]

    return opened
