"""The shape of a model, read from its config.json: parameters counted, and the numbers that its attention keeps.

Pure: it takes the content of the file. No weights, no torch, no transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from orl_core.errors import ConfigError, boundary, cut
from orl_core.memory.families import FAMILIES, Bias, Family

LARGEST = 1 << 20  # of a size: a larger one is no model's


class Experts(Struct, frozen=True, kw_only=True):
    """The experts of a mixture: `count` in a layer, of which a token passes `chosen`; each is `width` numbers wide.

    `layers` is the number of layers that have them; the other ones are dense. `shared` is the width of the expert that
    every token passes, 0 if there is none. `extra` counts a layer's parameters beside the matrices of the experts: its
    router, gates and biases.
    """

    count: int
    chosen: int
    width: int
    layers: int
    shared: int = 0
    extra: int = 0


class Attention(Struct, frozen=True, kw_only=True):
    """Sizes of one layer's attention. `query` is the width of all query heads together.

    `kv_heads` x `kv_head` is the width of the keys, and of the values. `cached` is the number of values that one token
    leaves in the cache; `latent` says that it is one vector, which every GPU of a tensor-parallel group keeps whole.
    """

    query: int
    kv_heads: int
    kv_head: int
    cached: int
    parameters: int
    latent: bool = False


class ModelShape(Struct, frozen=True, kw_only=True):
    """Sizes of a decoder, in numbers (not bytes).

    `norms` counts the parameters of a layer's norms, `mlp_bias` those of the biases of a dense layer's MLP, which is
    `width` numbers wide. `tied` says that the output shares the matrix of the input embedding.
    """

    vocabulary: int
    hidden: int
    layers: int
    attention: Attention
    norms: int
    width: int
    tied: bool
    mlp_bias: int = 0
    experts: Experts | None = None

    @property
    def embedding(self) -> int:
        """The parameters of the input embedding; the output has as many of its own where it is not `tied`."""
        return self.vocabulary * self.hidden

    @property
    def expert_parameters(self) -> int:
        """The parameters in the matrices of all experts that tokens choose from, of all layers."""
        experts = self.experts
        return 0 if experts is None else experts.layers * experts.count * 3 * self.hidden * experts.width

    @property
    def block_parameters(self) -> int:
        """The parameters of all layers, without those of the experts that tokens choose from."""
        experts = self.experts
        dense = self.layers - (experts.layers if experts else 0)
        mlps = dense * (3 * self.hidden * self.width + self.mlp_bias)
        mixed = experts.layers * (3 * self.hidden * experts.shared + experts.extra) if experts else 0
        return self.layers * (self.attention.parameters + self.norms) + mlps + mixed

    @property
    def parameters(self) -> int:
        """The parameters of the model; a tied output is not counted twice."""
        ends = self.embedding * (1 if self.tied else 2) + self.hidden
        return self.block_parameters + self.expert_parameters + ends

    @property
    def active_width(self) -> int:
        """The width of the MLP that one token passes, in the layer where it is largest."""
        experts = self.experts
        return max(self.width, experts.chosen * experts.width + experts.shared) if experts else self.width

    def lora_parameters(self, rank: int) -> int:
        """Return the parameters of adapters of this rank at every matrix of the layers: rank x (inputs + outputs)."""
        keys = self.attention.kv_heads * self.attention.kv_head
        attention = 2 * (self.hidden + self.attention.query) + 2 * (self.hidden + keys)
        experts = self.experts
        dense = (self.layers - (experts.layers if experts else 0)) * 3 * (self.hidden + self.width)
        mixed = 0
        if experts:
            shared = 3 * (self.hidden + experts.shared) if experts.shared else 0
            mixed = experts.layers * (experts.count * 3 * (self.hidden + experts.width) + shared)
        return rank * (self.layers * attention + dense + mixed)


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model with this config.json. A model of text and images counts by its text.

    Raises:
        ConfigError: its family is not known, or a size is missing or no size.
    """
    with boundary(ConfigError, "reading the sizes in the model's config.json"):
        text = config.get("text_config")
        return _shape_of({**config, **text} if text else config)


def _shape_of(config: Mapping[str, Any]) -> ModelShape:
    name = str(config.get("model_type"))
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(f"the parameters of model_type {name!r} are not known. Known are {', '.join(FAMILIES)}")
    read = _Reader(config)
    hidden, experts = read.size("hidden_size"), _experts(read, family)
    return ModelShape(
        vocabulary=read.size("vocab_size"),
        hidden=hidden,
        layers=read.size("num_hidden_layers"),
        attention=_latent_attention(read, hidden) if family.latent else _attention(read, family, hidden),
        norms=family.norms * hidden,
        width=read.size("intermediate_size", 0 if experts else None),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        mlp_bias=bool(config.get("mlp_bias")) * (2 * read.size("intermediate_size", 0) + hidden),
        experts=experts,
    )


def _attention(read: _Reader, family: Family, hidden: int) -> Attention:
    heads = read.size("num_attention_heads")
    head = read.size("head_dim", hidden // heads)
    kv_heads = read.size("num_key_value_heads", heads)
    query, kv = heads * head, kv_heads * head
    norms = {"": 0, "head": 2 * head, "all": query + kv}
    qk_norm = "head" if read.config.get("use_qk_norm") else family.qk_norm
    biases = _has(family.bias, read) * (query + 2 * kv) + _has(family.out_bias, read) * hidden
    return Attention(
        query=query,
        kv_heads=kv_heads,
        kv_head=head,
        cached=2 * kv,
        parameters=2 * hidden * (query + kv) + biases + norms[qk_norm] + family.sinks * heads,
    )


def _latent_attention(read: _Reader, hidden: int) -> Attention:
    """Return the sizes of an attention whose cache is one latent vector and one rotated key a token."""
    rank, rotated, plain = (read.size(name) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"))
    heads, value, query_rank = read.size("num_attention_heads"), read.size("v_head_dim"), read.size("q_lora_rank", 0)
    query = heads * (plain + rotated)
    queries = query_rank * (hidden + query + 1) if query_rank else hidden * query
    keys = hidden * (rank + rotated) + rank + rank * heads * (plain + value)
    return Attention(
        query=query,
        kv_heads=heads,
        kv_head=(plain + rotated + value) // 2,
        cached=rank + rotated,
        parameters=queries + keys + heads * value * hidden,
        latent=True,
    )


def _experts(read: _Reader, family: Family) -> Experts | None:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((read.size(name) for name in names if read.config.get(name)), 0)
    if not count:
        return None
    hidden, layers = read.size("hidden_size"), read.size("num_hidden_layers")
    width = read.size("moe_intermediate_size", read.size("intermediate_size", 0))
    shared = read.size("shared_expert_intermediate_size", read.size("n_shared_experts", 0) * width)
    biases = count * (1 + 2 * width + hidden) if family.expert_bias else 0
    return Experts(
        count=count,
        chosen=read.size("num_experts_per_tok"),
        width=width,
        layers=sum(_is_mixed(read.config, layer) for layer in range(layers)),
        shared=shared,
        extra=count * hidden + biases + (hidden if family.shared_gate else 0),
    )


def _is_mixed(config: Mapping[str, Any], layer: int) -> bool:
    """Tell whether a layer has experts. Families say it in four ways."""
    kinds = config.get("mlp_layer_types")
    if kinds:
        return bool(kinds[layer] == "sparse")
    if layer < int(config.get("first_k_dense_replace") or 0) or layer in (config.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % int(config.get("decoder_sparse_step") or 1) == 0


def _has(bias: Bias, read: _Reader) -> bool:
    return bias == "always" or (bias == "config" and bool(read.config.get("attention_bias")))


class _Reader:
    """The sizes of a config.json, by their keys."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def size(self, name: str, default: int | None = None) -> int:
        """Return the size `name`, or the `default` where it is missing or null.

        Raises:
            ConfigError: there is no such size.
        """
        value = self.config.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            told = cut(repr(value), 60)
            raise ConfigError(f"config.json of the model: {name} is {told}. Expected a whole number up to {LARGEST}")
        return value
