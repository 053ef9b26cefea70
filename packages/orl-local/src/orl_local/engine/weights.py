"""The trainer's weights to an SGLang: by handles of the GPU that both use (CUDA IPC), or as a checkpoint in a folder.

Handles send 0.6B parameters in 0.04 s, and a checkpoint in 1.9 s (docs/evidence.md). The checkpoint is for
engines that take no handles: those at an address, a mixture of experts, a container that forbids CUDA IPC. An engine
that died starts from it. The engine computes in bf16, so weights are sent in bf16, with LoRA adapters merged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from orl_core.errors import EngineError, boundary
from orl_rollout.logs import logger_of
from orl_rollout.tokenizer.pretrained import load_pretrained
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from orl_local.engine.lora import base_of, policy_weights, save_adapter
from orl_local.engine.sglang_control import SglangControl

logger = logger_of("orl")

BUCKET_BYTES = 512 << 20
SENT = torch.bfloat16  # the type of weights as they are sent
_CHUNK = 1 << 20  # elements that are hashed at once
_PRIME = 1_000_003


class WeightSender:
    """Sends the weights of a model to the SGLang of `control`, and leaves its prefix cache empty.

    `handles`: the engine is on the trainer's GPU, and `sglang` is in this environment. `folder` is for a checkpoint of
    the latest weights, without tokenizer.
    """

    def __init__(self, control: SglangControl, folder: Path, *, handles: bool = False) -> None:
        self._control = control
        self._handles = handles
        self.folder = folder

    async def send(self, model: PreTrainedModel, version: str) -> None:
        """Let the engine compute with the weights of `model` from now on, as `version`.

        Once handles have failed and the checkpoint has not, checkpoints are sent. An engine that takes weights neither
        way died.

        Raises:
            EngineError: the weights cannot be sent, or the engine refuses them.
        """
        if self._handles:
            try:
                await self._send_handles(model, version)
            except EngineError as fault:
                await self._send_checkpoint(model, version)
                self._handles = False
                logger.warning("weights go through %s from now on: %s", self.folder, fault)
        else:
            await self._send_checkpoint(model, version)
        await self._control.flush_cache()

    def write(self, model: PreTrainedModel) -> None:
        """Write the weights of `model` to `folder`.

        Raises:
            EngineError: the disk is full, or cannot be written.
        """
        with boundary(EngineError, f"writing weights to {self.folder}"):
            write_weights(model, self.folder, _cast)

    async def _send_checkpoint(self, model: PreTrainedModel, version: str) -> None:
        self.write(model)
        try:
            await self._control.update_from_disk(str(self.folder), version)
        except EngineError as fault:
            raise EngineError(f"{fault}. Let SGLang read {self.folder}, if it runs in a container") from fault

    async def _send_handles(self, model: PreTrainedModel, version: str) -> None:
        """Send bucket by bucket. The memory of a bucket is freed once the engine has answered and the GPU is idle."""
        for bucket in buckets(policy_weights(model)):
            with boundary(EngineError, "sharing weights by CUDA IPC"):
                serialized = _serialized(bucket)
                torch.cuda.synchronize()  # the engine must not read what is still being computed
            await self._control.update_from_tensors(serialized, version)
            torch.cuda.synchronize()
        torch.cuda.ipc_collect()


def write_weights(model: Any, folder: Path, cast: Callable[[Tensor], Tensor] = Tensor.detach) -> None:
    """Write the weights of the policy, each as `cast` returns it, tied ones once."""
    base = base_of(model)
    weights = {name: cast(one).cpu() for name, one in policy_weights(model) if name not in base.all_tied_weights_keys}
    base.save_pretrained(folder, state_dict=weights)


def save_policy(model: Any, name: str, chat_template: str | None, folder: Path) -> None:
    """Write weights and adapters of the policy, and the tokenizer of the checkpoint `name` with the run's template."""
    write_weights(model, folder)
    save_adapter(model, folder)
    tokenizer = load_pretrained(name)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    tokenizer.save_pretrained(str(folder))


def named_as_saved(model: PreTrainedModel) -> bool:
    """Tell whether checkpoints of `model` name its weights as `state_dict` does. An engine skips unknown names.

    Experts of a mixture are one tensor in memory and many in a checkpoint; multimodal models have other prefixes there.
    """
    weights = {name: weight.to("meta") for name, weight in model.state_dict().items()}
    return revert_weight_conversion(model, weights).keys() == weights.keys()


def buckets(weights: Iterable[tuple[str, Tensor]], most: int = BUCKET_BYTES) -> Generator[list[tuple[str, Tensor]]]:
    """Yield all `weights` as sent, in their order, in lists of at most `most` bytes; a larger tensor is alone in its.

    Tied weights are one tensor under several names. Each name is sent, as in a checkpoint without tying.
    """
    bucket: list[tuple[str, Tensor]] = []
    for name, weight in weights:
        sent = _cast(weight)
        if bucket and sent.nbytes + sum(tensor.nbytes for _, tensor in bucket) > most:
            yield bucket
            bucket = []
        bucket.append((name, sent))
    yield bucket


def _cast(weight: Tensor) -> Tensor:
    """Return a weight in bf16, and a buffer of integers as it is."""
    return weight.detach().to(SENT) if weight.is_floating_point() else weight.detach()


def fingerprints(weights: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Return a hash of each weight as it is sent, by name. One changed bit always changes it.

    Sums of bits times odd factors, modulo 2^64: linear, and computed where the weight is.
    """
    hashes = {name: _hash(weight.detach()) for name, weight in weights}
    return dict(zip(hashes, torch.stack([*hashes.values()]).tolist(), strict=True)) if hashes else {}


def _hash(weight: Tensor) -> Tensor:
    """Return the hash of one weight, int64 [], without a copy of the weight on another device."""
    factors = _factors(weight.device)
    sent = weight.to(SENT).view(torch.int16) if weight.is_floating_point() else weight
    total = factors.new_zeros(())
    for chunk in sent.reshape(-1).split(_CHUNK):
        total = total * _PRIME + (chunk.long() * factors[: chunk.numel()]).sum()
    return total


@cache
def _factors(device: torch.device) -> Tensor:
    """Return odd factors, int64 [_CHUNK]."""
    drawn = torch.randint(-(2**62), 2**62, (_CHUNK,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(device)


def _serialized(bucket: list[tuple[str, Tensor]]) -> str:
    """Return a bucket as SGLang reads it: one flat tensor, and the name, type and place of each weight in it."""
    from importlib import import_module

    patch: Any = import_module("sglang.srt.utils.patch_torch")
    utils: Any = import_module("sglang.srt.utils")
    flat: Any = import_module("sglang.srt.weight_sync.tensor_bucket")
    patch.monkey_patch_torch_reductions()
    whole = flat.FlattenedTensorBucket(named_tensors=bucket)
    data = {"flattened_tensor": whole.get_flattened_tensor(), "metadata": whole.get_metadata()}
    return utils.MultiprocessingSerializer.serialize(data, output_str=True)
