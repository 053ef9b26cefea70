"""Sizes of a model, read from its config.json: its parameters, and the numbers that its attention keeps.

A family is a `model_type`. Its row in FAMILIES has what a config.json does not say about its layers. A test counts the
parameters of each family with transformers. A family without a row is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from huggingface_hub import try_to_load_from_cache
from msgspec import Struct
from orl_core.errors import ConfigError, boundary
from orl_core.names import download_of


class Family(Struct, frozen=True, kw_only=True):
    """The small parameters of a layer, and the default of `tie_word_embeddings`.

    `bias` names the attention's projections with a bias: queries, keys and values ("qkv"), or these and the output
    ("all"); both only if the key `attention_bias` is set, "always" without the key. `norms` is the number of norms over
    the hidden size. `qk_norm` is the width of the norms of queries and keys. `latent` is the attention of DeepSeek-V3.
    `shared_gate` is a gate of the shared expert. `sinks` adds a number for each head, and biases of router and experts.
    """

    bias: Literal["", "qkv", "all", "always"] = ""
    norms: int = 2
    qk_norm: Literal["", "head", "all"] = ""
    latent: bool = False
    shared_gate: bool = False
    sinks: bool = False
    tied: bool = False


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("mistral", "ministral3", "mixtral", "phi3"), Family()),
    **dict.fromkeys(("llama", "granite"), Family(bias="all")),
    **dict.fromkeys(("qwen3", "qwen3_moe"), Family(bias="all", qk_norm="head")),
    **dict.fromkeys(("olmo2", "olmo3"), Family(bias="all", qk_norm="all")),
    **dict.fromkeys(("seed_oss", "glm", "glm4_moe"), Family(bias="qkv")),
    **dict.fromkeys(("deepseek_v3", "glm4_moe_lite"), Family(latent=True)),
    "qwen2": Family(bias="always"),
    "qwen2_moe": Family(bias="always", shared_gate=True),
    "glm4": Family(bias="qkv", norms=4),
    "minimax_m2": Family(qk_norm="all"),
    "exaone4": Family(qk_norm="head"),
    "smollm3": Family(bias="all", tied=True),
    "gemma2": Family(bias="all", norms=4, tied=True),
    "gemma3_text": Family(bias="all", norms=4, qk_norm="head", tied=True),
    "cohere2": Family(bias="all", norms=1, tied=True),
    "gpt_oss": Family(bias="all", sinks=True),
}


class ModelShape(Struct, frozen=True, kw_only=True):
    """Sizes of a decoder, in numbers (not bytes).

    `query` and `key_value` are the widths of all queries, and of keys and values together. A token leaves `cached`
    values in the cache of a layer for each of `cache_heads`; a latent vector is one head. It passes `chosen` experts,
    and at most `width` numbers of MLPs in a layer. `block_parameters` are those of all layers without
    `expert_parameters`, of which a router chooses. `adapted` is the sum of inputs and outputs of all matrices of the
    layers. `tied` says that the output is the matrix of the input embedding.
    """

    vocabulary: int
    hidden: int
    layers: int
    query: int
    key_value: int
    cache_heads: int
    cached: int
    width: int
    chosen: int
    block_parameters: int
    expert_parameters: int
    adapted: int
    tied: bool

    @property
    def embedding(self) -> int:
        """The parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """The parameters of the model; a tied output is not counted twice."""
        ends = self.embedding * (1 if self.tied else 2) + self.hidden
        return self.block_parameters + self.expert_parameters + ends

    def token_bytes(self, tensor: int = 1, value_bytes: int = 2) -> int:
        """Return the bytes that one token leaves in the cache of one of `tensor` GPUs, which holds at least one head.

        Sliding windows count as full attention, which is the upper bound.
        """
        return self.layers * -(-self.cache_heads // tensor) * self.cached * value_bytes


def config_of(model: str) -> dict[str, Any]:
    """Return the config.json of a checkpoint: of the folder `model`, or of a name in the hub's cache."""
    path = Path(model) / "config.json"
    with boundary(ConfigError, f"reading {path}"):
        file: Any = path if path.is_file() else None
        with suppress(ValueError):  # a path is not a name of the hub
            file = file or try_to_load_from_cache(model, "config.json")
        if isinstance(file, str | Path):
            return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    get = download_of(model, ", or run ", "config.json")
    raise ConfigError(f"{model} is not on this machine. Give --model the folder of a checkpoint{get}")


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model with this config.json. A model of text and images counts by its text."""
    with boundary(ConfigError, "reading the sizes in the model's config.json"):
        return _shape_of(_text_of(config))


def experts_of(config: Mapping[str, Any]) -> int:
    """Return the number of experts in a layer of the model with this config.json; 0 if it is dense."""
    with boundary(ConfigError, "reading the experts in the model's config.json"):
        return _experts(_text_of(config))


def chosen_of(config: Mapping[str, Any]) -> int:
    """Return how many experts each token of the mixture with this config.json chooses."""
    with boundary(ConfigError, "reading the experts in the model's config.json"):
        return _size(_text_of(config), "num_experts_per_tok")


def _text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return {**config, **text} if text else config


def _experts(config: Mapping[str, Any]) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next(filter(None, (_size(config, name, 0) for name in names)), 0)


def _shape_of(config: Mapping[str, Any]) -> ModelShape:
    name = str(config.get("model_type"))
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(f"the parameters of model_type {name!r} are not known. Known are {', '.join(FAMILIES)}")
    size = partial(_size, config)
    hidden, layers = size("hidden_size"), size("num_hidden_layers")
    query, key_value, cache_heads, cached, attention = (
        _latent_attention(config, hidden) if family.latent else _attention(config, family, hidden)
    )
    count = _experts(config)
    width = size("intermediate_size", 0 if count else None)
    expert = size("moe_intermediate_size", width)
    chosen = size("num_experts_per_tok") if count else 0
    shared = size("shared_expert_intermediate_size", size("n_shared_experts", 0) * expert) if count else 0
    mixed = sum(_has_experts(config, layer) for layer in range(layers)) if count else 0
    dense = layers - mixed
    router = count * hidden + hidden * family.shared_gate + count * (1 + 2 * expert + hidden) * family.sinks
    mlp = 3 * hidden * width + bool(config.get("mlp_bias")) * (2 * width + hidden)
    adapted_mlps = dense * (hidden + width) + mixed * (count * (hidden + expert) + (hidden + shared) * bool(shared))
    mlps = dense * mlp + mixed * (3 * hidden * shared + router)
    return ModelShape(
        vocabulary=size("vocab_size"),
        hidden=hidden,
        layers=layers,
        query=query,
        key_value=key_value,
        cache_heads=cache_heads,
        cached=cached,
        width=max(width, chosen * expert + shared),
        chosen=chosen,
        block_parameters=layers * (attention + family.norms * hidden) + mlps,
        expert_parameters=mixed * count * 3 * hidden * expert,
        adapted=layers * (4 * hidden + 2 * query + key_value) + 3 * adapted_mlps,
        tied=bool(config.get("tie_word_embeddings", family.tied)),
    )


Widths = tuple[int, int, int, int, int]  # query, key_value, cache_heads, cached; and the parameters of the attention


def _attention(config: Mapping[str, Any], family: Family, hidden: int) -> Widths:
    heads = _size(config, "num_attention_heads")
    head, kv_heads = _size(config, "head_dim", hidden // heads), _size(config, "num_key_value_heads", heads)
    query, kv = heads * head, kv_heads * head
    norms = {"": 0, "head": 2 * head, "all": query + kv}
    qk_norm = "head" if config.get("use_qk_norm") else family.qk_norm
    biased = family.bias == "always" or bool(family.bias and config.get("attention_bias"))
    biases = biased * (query + 2 * kv + hidden * (family.bias == "all"))
    parameters = 2 * hidden * (query + kv) + biases + norms[qk_norm] + family.sinks * heads
    return query, 2 * kv, kv_heads, 2 * head, parameters


def _latent_attention(config: Mapping[str, Any], hidden: int) -> Widths:
    """Return the sizes of an attention whose cache is one latent vector and one rotated key for each token."""
    size = partial(_size, config)
    heads, rank, rotated = size("num_attention_heads"), size("kv_lora_rank"), size("qk_rope_head_dim")
    plain, value, query_rank = size("qk_nope_head_dim"), size("v_head_dim"), size("q_lora_rank", 0)
    query = heads * (plain + rotated)
    queries = query_rank * (hidden + query + 1) if query_rank else hidden * query
    keys = hidden * (rank + rotated) + rank + rank * heads * (plain + value)
    return query, query + heads * value, 1, rank + rotated, queries + keys + heads * value * hidden


def _has_experts(config: Mapping[str, Any], layer: int) -> bool:
    """Tell whether a layer has experts. Families say it in four ways."""
    kinds = config.get("mlp_layer_types")
    if kinds:
        return bool(kinds[layer] == "sparse")
    if layer < int(config.get("first_k_dense_replace") or 0) or layer in (config.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % int(config.get("decoder_sparse_step") or 1) == 0


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return the size `name`, or the `default` if it is missing or null."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int):
        raise ConfigError(f"config.json of the model: {name} is {value!r}. Expected a whole number")
    return value
