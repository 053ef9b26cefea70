"""The trainer's weights to an SGLang on this machine: through shared memory, or on one GPU without a copy (CUDA IPC).

The engine computes in bf16, so weights are sent in bf16; those with LoRA adapters are sent merged. Each class leaves
the prefix cache empty. They know neither rollouts nor the memory of the engine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from orl_core.errors import EngineError, boundary
from orl_rollout.logs import logger_of
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from orl_trl.lora import policy_weights
from orl_trl.sglang_control import SglangControl
from orl_trl.weight_check import SENT

logger = logger_of("orl")

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  a folder for each sync is made in it, readable by this user alone
FOLDER = "orl-weights-"  # begins the name of such a folder
BUCKET_BYTES = 512 << 20


class WeightSync(Protocol):
    """A way to send weights."""

    def __call__(self, model: PreTrainedModel, version: str) -> None:
        """Let the engine compute with the weights of `model` from now on, as `version`.

        Raises:
            EngineError: the weights cannot be sent, or the engine refuses them.
        """
        ...


class SharedMemorySync:
    """Writes safetensors to a folder in shared memory, which the engine reads. A context manager.

    `folder` is a checkpoint of the latest weights, without tokenizer, from which an engine can start. It is locked
    while it is in use. Entering removes the folders without a lock: their owners were killed.
    """

    def __init__(self, control: SglangControl, parent: Path = SHARED_MEMORY) -> None:
        self._control = control
        self._parent = parent
        self._life = ExitStack()
        self.folder = Path()

    def __enter__(self) -> Self:
        _remove_abandoned(self._parent)
        with boundary(EngineError, f"making a folder for weights in {self._parent}"), ExitStack() as entering:
            self.folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=self._parent))
            entering.callback(shutil.rmtree, self.folder, ignore_errors=True)
            with suppress(OSError):  # NFS locks no folder, and then nobody removes one there
                entering.enter_context(_locked(self.folder))
            self._life = entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.close()

    def __call__(self, model: PreTrainedModel, version: str) -> None:
        """See `WeightSync`."""
        self.write(model)
        try:
            self._control.update_from_disk(str(self.folder), version)
        except EngineError as fault:
            raise EngineError(f"{fault}. Let SGLang read {self.folder}, if it runs in a container") from fault
        self._control.flush_cache()

    def write(self, model: PreTrainedModel) -> None:
        """Write the weights of `model` to `folder`.

        Raises:
            EngineError: shared memory is full, or cannot be written.
        """
        with boundary(EngineError, f"writing weights to {self.folder}"):
            model.save_pretrained(self.folder, state_dict=_sent(model))


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of `folder`, which ends with the process.

    Raises:
        OSError: another process holds it, or the file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove folders with weights whose owner was killed. An empty one may be about to be locked."""
    for folder in {file.parent for file in parent.glob(f"{FOLDER}*/*")}:
        with suppress(OSError), _locked(folder):
            shutil.rmtree(folder)


class CudaIpcSync:
    """Sends handles of the trainer's own GPU memory, bucket by bucket; the engine copies on the GPU.

    It needs `sglang` in this environment, an engine on the same GPU, and a model that is `named_as_saved`.
    """

    def __init__(self, control: SglangControl, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._control = control
        self._bucket_bytes = bucket_bytes

    def __call__(self, model: PreTrainedModel, version: str) -> None:
        """See `WeightSync`. The memory of a bucket is freed once the engine has answered and the GPU is idle."""
        for bucket in buckets(policy_weights(model), self._bucket_bytes):
            with boundary(EngineError, "sharing weights by CUDA IPC"):
                serialized = _serialized(bucket)
                torch.cuda.synchronize()  # the engine must not read what is still being computed
            self._control.update_from_tensors(serialized, version)
            torch.cuda.synchronize()
        torch.cuda.ipc_collect()
        self._control.flush_cache()


class FirstThatWorks:
    """Sends weights by CUDA IPC; once that has failed, through shared memory: some containers forbid the first."""

    def __init__(self, ipc: WeightSync, shared: WeightSync) -> None:
        self._way, self._shared = ipc, shared

    def __call__(self, model: PreTrainedModel, version: str) -> None:
        """See `WeightSync`. An engine that takes weights neither way died: the first way stays."""
        try:
            self._way(model, version)
        except EngineError as fault:
            if self._way is self._shared:
                raise
            self._shared(model, version)
            self._way = self._shared
            logger.warning("weights go through shared memory from now on: %s", fault)


def room_for(model: PreTrainedModel, other: Path) -> Path:
    """Return shared memory if the weights of `model` fit in it twice, else the folder `other`."""
    needed = 2 * SENT.itemsize * model.num_parameters()
    fits = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
    return SHARED_MEMORY if fits else other


def named_as_saved(model: PreTrainedModel) -> bool:
    """Tell whether checkpoints of `model` name its weights as `state_dict` does. An engine skips unknown names.

    Experts of a mixture are one tensor in memory and many in a checkpoint; multimodal models have other prefixes there.
    """
    weights = {name: weight.to("meta") for name, weight in model.state_dict().items()}
    return revert_weight_conversion(model, weights).keys() == weights.keys()


def buckets(weights: Iterable[tuple[str, Tensor]], most: int) -> Generator[list[tuple[str, Tensor]]]:
    """Yield all `weights`, in their order, in lists of at most `most` bytes as sent; a larger tensor is alone in its.

    Tied weights are one tensor under several names. Each name is sent, as in a checkpoint without tying.
    """
    bucket: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in weights:
        size = tensor.numel() * (SENT.itemsize if tensor.is_floating_point() else tensor.element_size())
        if bucket and held + size > most:
            yield bucket
            bucket, held = [], 0
        bucket.append((name, tensor))
        held += size
    if bucket:
        yield bucket


def _sent(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of `model` as they are sent, out of the GPU's memory. Tied weights stay one tensor."""
    own = {weight.data_ptr() for weight in model.state_dict().values()}
    tied: dict[tuple[int, torch.Size], Tensor] = {}
    sent: dict[str, Tensor] = {}
    for name, weight in policy_weights(model):
        key = weight.data_ptr(), weight.shape
        sent[name] = tied[key] if key in tied else _cast(weight).cpu()
        if weight.data_ptr() in own:  # a merged weight is gone, and the next one may be where it was
            tied[key] = sent[name]
    return sent


def _cast(weight: Tensor) -> Tensor:
    """Return a weight in bf16, and a buffer of integers as it is."""
    return weight.detach().to(SENT) if weight.is_floating_point() else weight.detach()


def _serialized(bucket: list[tuple[str, Tensor]]) -> str:
    """Return a bucket as SGLang reads it: one flat tensor, and the name, type and place of each weight in it."""
    from importlib import import_module

    patch: Any = import_module("sglang.srt.utils.patch_torch")
    utils: Any = import_module("sglang.srt.utils")
    flat: Any = import_module("sglang.srt.weight_sync.tensor_bucket")
    patch.monkey_patch_torch_reductions()
    whole = flat.FlattenedTensorBucket(named_tensors=[(name, _cast(weight)) for name, weight in bucket])
    data = {"flattened_tensor": whole.get_flattened_tensor(), "metadata": whole.get_metadata()}
    return utils.MultiprocessingSerializer.serialize(data, output_str=True)
