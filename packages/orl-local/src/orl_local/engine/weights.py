"""Weights as an engine gets them: handles of the GPU that both use (CUDA IPC), or a checkpoint.

The engine computes in bf16, so weights are sent in bf16, with LoRA adapters merged.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from orl_core.errors import EngineError, boundary
from orl_rollout.tokenizer.pretrained import load_pretrained
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from orl_local.engine.fingerprints import SENT, fingerprints
from orl_local.engine.local_model import full, leads, on_cpu
from orl_local.engine.lora import adapters_of, base_of, policy_weights, save_adapter

BUCKET_BYTES = 512 << 20

Bucket = list[tuple[str, Tensor]]


class SharedWeights:
    """The weights of `model` for an engine. `keep`: those that were taken are kept while the model trains on.

    An engine that dies gets the same weights again, and its rollouts continue. `frees`: the engine needs what torch has
    cached on the GPU; otherwise the next update uses it again. `handles` makes handles of a bucket as the engine reads
    them; None if it cannot.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        keep: bool = False,
        frees: bool = True,
        handles: Callable[[Bucket], str] | None = None,
    ) -> None:
        self.model, self._keep, self._frees, self._handles = model, keep, frees, handles
        self._kept: Bucket | None = None
        self._buckets: Iterator[Bucket] = iter(())
        self._bucket: Bucket | None = None

    def take(self) -> None:
        """Take the weights of now for the engine."""
        self._kept = None  # two copies would not fit
        if self._frees:
            torch.cuda.empty_cache()
        self._kept = list(as_sent(policy_weights(self.model))) if self._keep else None

    def share(self, number: int) -> str | None:
        """Return handles of bucket `number` of the taken weights; None after the last one.

        None at once if the engine could not use them. A bucket keeps its memory until the next call.

        Raises:
            EngineError: this machine shares no memory of its GPU.
        """
        with boundary(EngineError, "sharing weights by CUDA IPC"):
            if self._handles is None:
                return None
            if number == 0:
                usable = torch.cuda.is_available() and named_as_saved(base_of(self.model))
                self._buckets = buckets(self._weights()) if usable else iter(())
            self._bucket = next(self._buckets, None)
            if self._bucket is not None:
                return self._handles(self._bucket) if leads(self.model) else ""
            if torch.cuda.is_available():
                torch.cuda.ipc_collect()
                if self._frees:
                    torch.cuda.empty_cache()
        return None

    def write(self, folder: Path) -> None:
        """Write the taken weights to `folder`, as a checkpoint for the engine: tied ones once.

        Raises:
            EngineError: the disk is full, or cannot be written.
        """
        with boundary(EngineError, f"writing weights to {folder}"):
            if written := on_cpu(self.model, _untied(self.model, as_sent(self._weights()))):
                base_of(self.model).save_pretrained(folder, state_dict=written)

    def fingerprints(self) -> dict[str, int]:
        """Return a fingerprint of each of the taken weights."""
        return fingerprints((name, full(weight)) for name, weight in as_sent(self._weights()))

    def _weights(self) -> Iterable[tuple[str, Tensor]]:
        return policy_weights(self.model) if self._kept is None else self._kept


def _untied(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    return ((name, one.detach()) for name, one in weights if name not in base_of(model).all_tied_weights_keys)


def policy_of(model: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights and adapters of the policy, whole on the CPU. All ranks that share them take part."""
    return on_cpu(model, _untied(model, policy_weights(model))), on_cpu(model, adapters_of(model))


def save_policy(
    model: Any, policy: tuple[dict[str, Tensor], dict[str, Tensor]], name: str, chat_template: str | None, folder: Path
) -> None:
    """Write the `policy` of `model`, and the tokenizer of the checkpoint `name` with the run's template."""
    weights, adapters = policy
    base_of(model).save_pretrained(folder, state_dict=weights)
    save_adapter(model, folder, adapters)
    tokenizer = load_pretrained(name)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    tokenizer.save_pretrained(str(folder))


def named_as_saved(model: PreTrainedModel) -> bool:
    """Tell whether checkpoints of `model` name its weights as `state_dict` does. An engine skips unknown names.

    Experts of a mixture are one tensor in memory and many in a checkpoint; multimodal models have other prefixes there.
    """
    weights = {name: torch.empty(weight.shape, device="meta") for name, weight in model.state_dict().items()}
    return revert_weight_conversion(model, weights).keys() == weights.keys()


def as_sent(weights: Iterable[tuple[str, Tensor]]) -> Generator[tuple[str, Tensor]]:
    """Yield weights in bf16, and buffers of integers unchanged."""
    for name, weight in weights:
        yield name, weight.detach().to(SENT) if weight.is_floating_point() else weight.detach()


def buckets(weights: Iterable[tuple[str, Tensor]], most: int = BUCKET_BYTES) -> Generator[Bucket]:
    """Yield all `weights` as sent, in their order, in lists of at most `most` bytes; a larger tensor is alone in its.

    Tied weights are one tensor under several names. Each name is sent, as in a checkpoint without tying.
    """
    bucket: Bucket = []
    for name, weight in ((name, full(part)) for name, part in as_sent(weights)):
        if bucket and weight.nbytes + sum(tensor.nbytes for _, tensor in bucket) > most:
            yield bucket
            bucket = []
        bucket.append((name, weight))
    yield bucket


def sglang_handles(bucket: Bucket) -> str:
    """Return a bucket as SGLang reads it: one flat tensor, and the name, type and place of each weight in it.

    The engine must not read what the GPU still computes, so this waits for it.
    """
    from importlib import import_module

    patch: Any = import_module("sglang.srt.utils.patch_torch")
    utils: Any = import_module("sglang.srt.utils")
    flat: Any = import_module("sglang.srt.weight_sync.tensor_bucket")
    patch.monkey_patch_torch_reductions()
    whole = flat.FlattenedTensorBucket(named_tensors=bucket)
    data = {"flattened_tensor": whole.get_flattened_tensor(), "metadata": whole.get_metadata()}
    handles = utils.MultiprocessingSerializer.serialize(data, output_str=True)
    torch.cuda.synchronize()
    return handles


def vllm_handles(bucket: Bucket) -> str:
    """Return a bucket as vLLM reads it: one flat tensor, of which this is a handle, and the place of each weight in it.

    Torch keeps the tensor until vLLM has closed it.
    """
    flat = torch.cat([weight.contiguous().view(-1).view(torch.uint8) for _, weight in bucket])
    update = vllm_update(bucket, {str(torch.cuda.get_device_properties(flat.device).uuid): reduce_tensor(flat)[1]})
    torch.cuda.synchronize()
    return update


def vllm_update(bucket: Bucket, handles: Mapping[str, Any]) -> str:
    """Return the name, type, shape and size of each weight of a flat bucket, with its handle by a GPU's UUID."""
    update = {
        "names": [name for name, _ in bucket],
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for _, weight in bucket],
        "shapes": [list(weight.shape) for _, weight in bucket],
        "tensor_sizes": [weight.nbytes for _, weight in bucket],
        "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
    }
    return msgspec.json.encode(update).decode()
