"""The tokenizer of a Hugging Face checkpoint, as the renderer's protocol, and how a run's configuration makes both.

transformers is imported when a tokenizer is loaded, not before. Two encoders share one vocabulary: the checkpoint's
own, which knows added tokens, and a plain one without them, so that no text from outside can become a control id (law
L4). The template's variables are frozen when the tokenizer is made: all rollouts of a run share one template, one
reasoning switch, one date.

Every process of a run makes tokenizer and renderer here, so all of them show a model the same prompt. Only this module
reads the rendering settings. A setting that a checkpoint cannot obey is refused. It must not know engines or
environments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from orl_core import Renderer, RunConfig
from orl_core.errors import ConfigError, RenderError, boundary
from orl_core.text import did_you_mean

from orl_rollout.logs import logger_of
from orl_rollout.tokenizer.chat_template import ChatTemplate, Thinking
from orl_rollout.tokenizer.pretrained import load_pretrained, read_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logger_of("orl")


class TemplateSettings(TypedDict, total=False):
    """The settings of a chat template: see HFTokenizer."""

    thinking: Thinking
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    clock: datetime | None


class HFTokenizer:
    """The Tokenizer protocol over a fast tokenizer. Its methods may be called from several threads.

    `added_tokens` are the ids of the added tokens that are not white space alone, by text.
    `stop_ids` are further ids that end an action, such as the generation config's, or texts of added tokens. The
    tokenizer's own end-of-sequence id is always the last one, and the id of `turn_end` the first. `turn_end` is a token
    that the template prints behind an assistant's message and that ends an action too; "" if one of the others is
    there. `thinking` sets the template's reasoning switch, under the name that the template reads.
    `chat_template` is a text that replaces the checkpoint's own template; `chat_template_kwargs` are variables for it.
    `clock` is the time that the template shows; None is now.

    Raises:
        RenderError: the tokenizer is slow, or has no chat template.
        ConfigError: a variable that the template does not read, or a stop token that is not an added token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        thinking: Thinking = None,
        stop_ids: Sequence[int | str] = (),
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        clock: datetime | None = None,
    ) -> None:
        hf: Any = tokenizer  # transformers' own annotations are partial
        name = hf.name_or_path or "the tokenizer"
        if not hf.is_fast:
            kind = type(tokenizer).__name__
            raise RenderError(f"{name}: {kind} is a slow tokenizer; rendering needs the fast form, tokenizer.json")
        if not (chat_template or hf.chat_template):
            raise RenderError(
                f"{name} has no chat template. Take the checkpoint's instruct or chat version, or name a file with a "
                "template: `chat_template: FILE` in the configuration"
            )
        self._hf = hf
        self._backend = hf.backend_tokenizer
        self._plain, self._moved = _without_control_tokens(self._backend)
        self._sorted_tools = bool(hf.init_kwargs.get("sorted_tools"))
        self.added_tokens: dict[str, int] = {
            text: token for text, token in hf.get_added_vocab().items() if not _blank(text)
        }
        if unknown := [text for text in stop_ids if isinstance(text, str) and text not in self.added_tokens]:
            near = did_you_mean(unknown[0], self.added_tokens)
            raise ConfigError(
                f"`stop_tokens`: {unknown[0]!r} is not an added token of {name}{near or ': leave it out'}"
            )
        end: list[int] = [] if hf.eos_token_id is None else [hf.eos_token_id]
        ends = [*(self.added_tokens[stop] if isinstance(stop, str) else stop for stop in stop_ids), *end]
        # Some decoders strip a space from the start of a text. A control token before the text keeps it.
        spaced = self._backend.decode(self._plain.encode(" a", add_special_tokens=False).ids) == " a"
        self._anchor = [] if spaced else list(self.added_tokens.values())[:1]
        self._anchored = len(self._backend.decode(self._anchor, skip_special_tokens=False))
        self.chat_template = ChatTemplate(
            chat_template or _template_of(hf),
            special_tokens=hf.special_tokens_map,
            thinking=thinking,
            variables=chat_template_kwargs,
            clock=clock,
        )
        self.turn_end = self._turn_end([text for text, token in self.added_tokens.items() if token in ends])
        own = [self.added_tokens[self.turn_end]] if self.turn_end else []
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *ends]))

    def _turn_end(self, stops: Sequence[str]) -> str:
        """Return the added token that the template prints behind an assistant's message; "" if a stop is there."""
        user, reply = {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Zqa"}
        try:
            with boundary(RenderError, "looking for the end of a turn"):
                between, last = (
                    self.apply_chat_template(messages, tools=None, add_generation_prompt=False).rpartition("Zqa")[2]
                    for messages in ([user, reply, user], [user, reply])
                )
        except RenderError:  # the certificate says what is wrong
            return ""
        ends = [text for text in self.added_tokens if all(one.lstrip().startswith(text) for one in (between, last))]
        return "" if any(stop in between for stop in stops) else max(ends, key=len, default="")

    @property
    def vocabulary_size(self) -> int:
        """Return the number above every id of the checkpoint: the tokenizer's ids, and the rows of the embedding.

        Models pad their embedding, and may sample an id of the padding. The checkpoint's config.json states how many
        rows there are. Without that file, only the tokenizer's ids count.
        """
        known = 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)
        return max(known, *_embedding_sizes(self._hf.name_or_path))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without added tokens. The interpreter lock is released meanwhile.

        Each text is a batch of its own. A batch of several is spread over threads, and on busy cores the event loop
        waits longer for them than the few texts of a turn take.
        """
        encode = self._plain.encode_batch_fast
        batches: list[list[int]] = [encode([text], add_special_tokens=False)[0].ids for text in texts]
        moved = self._moved
        return [[moved.get(token, token) for token in ids] for ids in batches] if moved else batches

    def encode_joint(self, text: str) -> list[int]:
        """Return the ids of a rendered template, with added tokens."""
        return self._hf.encode(text, add_special_tokens=False, verbose=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` with control ids. Ids outside the vocabulary are left out."""
        text: str = self._backend.decode([*self._anchor, *ids], skip_special_tokens=False)
        return text[self._anchored :]

    def file(self) -> bytes:
        """Return the content of a tokenizer.json that decodes what this tokenizer decodes."""
        return self._backend.to_str().encode()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text of a conversation in the run's chat template.

        Raises:
            jinja2.TemplateError: the template refuses the conversation.
        """
        tools = json.loads(json.dumps(tools, sort_keys=True)) if self._sorted_tools else tools
        return self.chat_template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)


def load_tokenizer(
    path_or_name: str | Path, *, stop_tokens: Sequence[str] = (), **settings: Unpack[TemplateSettings]
) -> HFTokenizer:
    """Load the tokenizer of a checkpoint: a folder, or a name on the model hub. See `HFTokenizer` for the settings.

    Raises:
        RenderError: there is none, it is slow, or it has no chat template.
        ConfigError: a variable that the template does not read, or a stop token that is not an added token.
    """
    with boundary(RenderError, f"loading the tokenizer of `{path_or_name}`"):
        stops = [*stop_tokens, *_generation_stop_ids(str(path_or_name))]
        return HFTokenizer(load_pretrained(path_or_name), stop_ids=stops, **settings)


def _generation_stop_ids(path_or_name: str) -> tuple[int, ...]:
    """Return the end-of-sequence ids of the generation config; none if the checkpoint has no such file."""
    ids: object = read_object(path_or_name, "generation_config.json").get("eos_token_id")
    listed = cast("list[object]", ids if isinstance(ids, list) else [ids])
    return tuple(one for one in listed if isinstance(one, int))


def _embedding_sizes(path_or_name: str) -> list[int]:
    """Return every `vocab_size` of config.json, or 0. A model with images states its own one level deeper."""
    config = read_object(path_or_name, "config.json") if path_or_name else {}
    parts = [config, *(cast("dict[str, Any]", part) for part in config.values() if isinstance(part, dict))]
    return [0, *(size for part in parts if isinstance(size := part.get("vocab_size"), int))]


def _without_control_tokens(backend: Any) -> tuple[Any, dict[int, int]]:
    """Return a tokenizer over the same model that knows no control token and has no post-processor.

    Gemma 3 and EXAONE 4 hold runs of white space as added tokens. Such a run is text and keeps its id. The second value
    maps ids of the new tokenizer to the checkpoint's, if the two differ.
    """
    from tokenizers import Tokenizer

    plain: Any = Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if (value := getattr(backend, part)) is not None:
            setattr(plain, part, _never_first(value) if part == "pre_tokenizer" else value)
    blank = {token: added for token, added in backend.get_added_tokens_decoder().items() if _blank(added.content)}
    plain.add_tokens(list(blank.values()))
    ids: dict[int, int] = {plain.token_to_id(added.content): token for token, added in blank.items()}
    return plain, {ours: theirs for ours, theirs in ids.items() if ours != theirs}


def _blank(text: str) -> bool:
    """Return whether a token is white space alone, SentencePiece's mark for a space included."""
    return not text.replace("\u2581", " ").strip()


def _never_first(pre_tokenizer: Any) -> Any:
    """Leave out SentencePiece's mark at the start of a text: a control token comes before it."""
    from tokenizers.pre_tokenizers import Metaspace

    if getattr(pre_tokenizer, "prepend_scheme", "") != "first":
        return pre_tokenizer
    return Metaspace(replacement=pre_tokenizer.replacement, prepend_scheme="never", split=pre_tokenizer.split)


def _template_of(tokenizer: Any) -> str:
    """Return the text of the chat template; of several named ones, the one for tools."""
    with boundary(RenderError, "choosing the chat template"):
        return tokenizer.get_chat_template(tools=[{"type": "function"}])


def open_tokenizer(config: RunConfig, model: str) -> HFTokenizer:
    """Load the tokenizer of the checkpoint `model` with the run's chat template, variables and date.

    Raises:
        RenderError: the tokenizer cannot be loaded or used.
        ConfigError: a setting that the chat template cannot obey.
    """
    date = config.chat_template_date
    tokenizer = load_tokenizer(
        model,
        thinking=config.thinking,
        chat_template=config.chat_template,
        chat_template_kwargs=config.chat_template_kwargs,
        clock=datetime.combine(date, time.min) if date else None,
        stop_tokens=config.stop_tokens,
    )
    if tokenizer.turn_end:
        logger.warning("%s ends an action too: the chat template ends turns with it", tokenizer.turn_end)
    _check_switch(config, tokenizer)
    if date is None and tokenizer.chat_template.shows_time:
        logger.warning(
            "the chat template shows the date: set `chat_template_date`, so that all processes show the same"
        )
    return tokenizer


def open_renderer(config: RunConfig, tokenizer: HFTokenizer) -> Renderer:
    """Make and certify the run's renderer.

    Raises:
        RenderError: the certificate fails.
        ConfigError: `thinking: false`, and the chat template opens the reasoning all the same.
    """
    renderer = Renderer(tokenizer, tool_format=config.tool_format, system_prompt_template=config.system_prompt_template)
    if config.thinking is False and renderer.opens("user"):
        raise ConfigError(
            "`thinking: false` cannot be obeyed: the chat template opens the reasoning in every prompt. "
            "Leave `thinking` out, or set it to `keep`"
        )
    return renderer


def _check_switch(config: RunConfig, tokenizer: HFTokenizer) -> None:
    """Refuse a `thinking` that the user states and the chat template cannot obey.

    orl itself does `strip`, which needs no switch. The renderer checks its needs.
    """
    template, thinking = tokenizer.chat_template, config.thinking
    if thinking is None:
        return
    setting = f"`thinking: {str(thinking).lower()}`"
    if thinking is False and template.always_thinks:
        raise ConfigError(
            f"{setting} cannot be obeyed: the chat template sets how much the model thinks, and cannot turn it off. "
            "Leave `thinking` out; `chat_template_kwargs: {reasoning_effort: low}` lowers it in some templates"
        )
    if thinking in (True, "keep") and not template.can_think:
        raise ConfigError(f"{setting} changes nothing: the chat template knows no reasoning. Leave `thinking` out")
    contrary = template.contrary(config.chat_template_kwargs, on=bool(thinking))
    if contrary:
        raise ConfigError(f"{setting} and `chat_template_kwargs: {{{contrary}}}` contradict each other: leave one out")
