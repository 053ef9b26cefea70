"""The number of ids of a checkpoint: it tells an id that a model can sample from one that an engine made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the number above every id of the checkpoint: the tokenizer's ids, and the rows of the model's embedding.

    Models pad their embedding, and may sample an id of the padding. The checkpoint's config.json says how far; without
    one, the tokenizer alone decides.
    """
    hf: Any = tokenizer  # transformers' own annotations are partial
    known = 1 + max(hf.backend_tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return max(known, *_sizes(_config(hf.name_or_path)))


def _config(name_or_path: str) -> dict[str, Any]:
    import transformers

    pretrained: Any = transformers.PretrainedConfig
    if not name_or_path:
        return {}
    try:
        return pretrained.get_config_dict(name_or_path)[0]
    except (OSError, ValueError):
        return {}


def _sizes(config: dict[str, Any]) -> list[int]:
    """Return every `vocab_size` of a configuration; that of a model with images stands one level deeper."""
    parts = [config, *(cast("dict[str, Any]", part) for part in config.values() if isinstance(part, dict))]
    sizes = [part.get("vocab_size") for part in parts]
    return [0, *(size for size in sizes if isinstance(size, int))]
