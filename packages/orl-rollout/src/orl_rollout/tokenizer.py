"""The tokenizer of a Hugging Face checkpoint, as the renderer's protocol.

It must not know messages or plans. transformers is imported when a tokenizer is loaded, not before. Two encoders share
one vocabulary: the checkpoint's own, which knows added tokens, and a plain one that has none and adds nothing, so that
no text from outside can become a control id (law L4). Keyword arguments and the clock that the chat template may read
are frozen when it is loaded: all episodes of a run share one template, one date.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from orl_core.errors import RenderError, boundary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast


class HFTokenizer:
    """The Tokenizer protocol over a fast tokenizer. Its methods may be called from several threads.

    `stop_ids` are further ids that end an action, such as the generation config's; the tokenizer's own end-of-sequence
    id is always one. `thinking` is what the chat template gets as `enable_thinking`.

    Raises:
        RenderError: the tokenizer is slow, or has no chat template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, thinking: bool = False, stop_ids: Sequence[int] = ()
    ) -> None:
        hf: Any = tokenizer  # transformers' own annotations are partial
        name = hf.name_or_path or "the tokenizer"
        if not hf.is_fast:
            kind = type(tokenizer).__name__
            raise RenderError(f"{name}: {kind} is a slow tokenizer; rendering needs the fast form, tokenizer.json")
        if not hf.chat_template:
            raise RenderError(f"{name} has no chat template: take the checkpoint's instruct or chat version")
        self._hf = hf
        self._backend = hf.backend_tokenizer
        self._plain = _without_added_tokens(self._backend)
        self._added: dict[str, int] = dict(hf.get_added_vocab())
        end: list[int] = [] if hf.eos_token_id is None else [hf.eos_token_id]
        self._stop_ids = tuple(dict.fromkeys([*stop_ids, *end]))
        # A decoder that takes a space from the start of a text must not find it: a control token stands before.
        spaced = self._backend.decode(self._plain.encode(" a", add_special_tokens=False).ids) == " a"
        self._anchor = [] if spaced else list(self._added.values())[:1]
        self._anchored = len(self._backend.decode(self._anchor, skip_special_tokens=False))
        self._template = _compiled(hf)
        self._frozen = {**hf.special_tokens_map, "enable_thinking": thinking, **_clock()}

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Every added token, special or not: its text and its id."""
        return self._added

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The generation config's end-of-sequence ids, then the tokenizer's own."""
        return self._stop_ids

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, added tokens unknown; the interpreter lock is released meanwhile.

        Each text is a batch of its own: one of several would be spread over threads, and waiting for them on busy cores
        costs an event loop more than the few pieces of a turn do.
        """
        return [self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]

    def encode_joint(self, text: str) -> list[int]:
        """The ids of a rendered template, added tokens recognised."""
        return self._hf.encode(text, add_special_tokens=False, verbose=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control ids included; ids outside the vocabulary are left out."""
        text: str = self._backend.decode([*self._anchor, *ids], skip_special_tokens=False)
        return text[self._anchored :]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """The text of a conversation in the checkpoint's chat template.

        Raises:
            jinja2.TemplateError: the template refuses the conversation.
        """
        return self._template.render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **self._frozen
        )


def load_tokenizer(path_or_name: str | Path, *, thinking: bool = False) -> HFTokenizer:
    """The tokenizer of a checkpoint: a folder, or a name on the model hub.

    Raises:
        RenderError: there is none, it is slow, or it has no chat template.
    """
    import transformers

    auto: Any = transformers.AutoTokenizer
    with boundary(RenderError, f"loading the tokenizer of `{path_or_name}`"):
        tokenizer = auto.from_pretrained(str(path_or_name))
        stop_ids = _generation_stop_ids(str(path_or_name))
        return HFTokenizer(tokenizer, thinking=thinking, stop_ids=stop_ids)


def _generation_stop_ids(path_or_name: str) -> tuple[int, ...]:
    """The end-of-sequence ids of the generation config; none where the checkpoint has no such file."""
    import transformers

    generation: Any = transformers.GenerationConfig
    try:
        ids: int | list[int] | None = generation.from_pretrained(path_or_name).eos_token_id
    except OSError:
        return ()
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def _without_added_tokens(backend: Any) -> Any:
    """A tokenizer over the same model that knows no added token and has no post-processor. Nothing is copied."""
    from tokenizers import Tokenizer

    plain = Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if (value := getattr(backend, part)) is not None:
            setattr(plain, part, _never_first(value) if part == "pre_tokenizer" else value)
    return plain


def _never_first(pre_tokenizer: Any) -> Any:
    """SentencePiece's mark at the start of a text left out: what is encoded stands behind a control token."""
    from tokenizers.pre_tokenizers import Metaspace

    if getattr(pre_tokenizer, "prepend_scheme", "") != "first":
        return pre_tokenizer
    return Metaspace(replacement=pre_tokenizer.replacement, prepend_scheme="never", split=pre_tokenizer.split)


def _compiled(tokenizer: Any) -> Any:
    """The chat template in transformers' own environment: sandbox, filters and tags are the ones it was written for.

    Of several named templates it is the one for tools. `apply_chat_template` is not used because it turns functions in
    its keyword arguments into strings, and the clock has to be pinned.
    """
    from transformers.utils import chat_template_utils

    with boundary(RenderError, "compiling the chat template"):
        template = tokenizer.get_chat_template(tools=[{"type": "function"}])
        return chat_template_utils._compile_jinja_template(template)  # pyright: ignore[reportPrivateUsage]


def _clock() -> dict[str, Any]:
    """What templates call or read for the date, pinned to now."""
    now = datetime.now().astimezone()
    return {"strftime_now": now.strftime, "date_string": now.strftime("%d %b %Y")}
