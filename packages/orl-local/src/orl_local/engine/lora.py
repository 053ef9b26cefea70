"""LoRA: adapters at every linear layer train, the weights below stay as they are.

A checkpoint has the merged weights, so that everything reads it as a model, and the adapters in a folder of their own,
from which a run continues. peft owns the adapters; this module knows no trainer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from orl_core.errors import ConfigError, boundary
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import PreTrainedModel

ADAPTER = "adapter"  # folder of a checkpoint
ALPHA = 32  # divided by the rank: so the best learning rate hardly depends on it (Schulman, "LoRA Without Regret")


def with_adapters(model: PreTrainedModel, rank: int) -> PeftModel:
    """Return `model` with new adapters of this rank, which alone train."""
    options: dict[str, Any] = {"lora_dropout": 0.0, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    with warnings.catch_warnings():  # peft asks models for a property that transformers has renamed
        warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
        return cast("PeftModel", get_peft_model(model, LoraConfig(r=rank, lora_alpha=ALPHA, **options)))


def base_of(model: Any) -> PreTrainedModel:
    """Return the transformers model below the adapters; `model` itself if it has none."""
    return cast("PreTrainedModel", model.get_base_model() if isinstance(model, PeftModel) else model)


def policy_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the tensor of each weight, as an engine must see it: with its adapter, if it has one.

    Names and types are those of `state_dict` before there were adapters. `model` is not changed. One merged weight is
    made at a time; weights without an adapter are the model's own.
    """
    base = base_of(model)
    adapted = {name: module for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    for name, weight in base.state_dict().items():
        owner, _, parameter = name.rpartition(".base_layer.")
        if owner in adapted and parameter == "weight":
            yield f"{owner}.weight", _merged(adapted[owner], weight)
        elif owner in adapted:
            yield f"{owner}.{parameter}", weight
        elif name.partition(".lora_")[0] not in adapted:
            yield name, weight


def _merged(layer: LoraLayer, weight: Tensor) -> Tensor:
    """Return the weight of a layer with its adapters, summed in fp32."""
    changes: list[Tensor] = [cast("Any", layer).get_delta_weight(name) for name in layer.active_adapters]
    return (weight.float() + sum(change.float() for change in changes)).to(weight.dtype)


def adapters_of(model: Any) -> list[tuple[str, Tensor]]:
    """Return the names and weights of the adapters of `model`, if it has any."""
    weights = model.state_dict() if isinstance(model, PeftModel) else {}
    return [(name, one) for name, one in weights.items() if ".lora_" in name]


def save_adapter(model: Any, checkpoint: Path, adapters: Mapping[str, Tensor]) -> None:
    """Write the `adapters` of `model` into a folder of `checkpoint`, if it has any."""
    if adapters:
        model.save_pretrained(str(checkpoint / ADAPTER), state_dict=adapters)


def load_adapter(model: PeftModel, checkpoint: Path) -> None:
    """Give `model` the adapters of `checkpoint`.

    Raises:
        ConfigError: they cannot be read.
    """
    with boundary(ConfigError, f"reading {checkpoint / ADAPTER}"):
        set_peft_model_state_dict(model, load_peft_weights(str(checkpoint / ADAPTER), device="cpu"))
