"""A model in this process as an engine for whoever plays: no trainer, only the checkpoint, a thread and a loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import torch
import transformers
from orl_core.errors import ConfigError, boundary
from orl_rollout.loop.engine import Engine
from orl_rollout.memory.estimate import GIB
from orl_rollout.tokenizer.pretrained import check_hub
from transformers import AutoModelForCausalLM, PreTrainedModel

from orl_local.engine.in_process_engine import InProcessEngine
from orl_local.engine.loop_thread import LoopThread
from orl_local.settings import TINY

T = TypeVar("T")


def load_model(name: str, *, frozen: bool = False) -> PreTrainedModel:
    """Load the causal language model `name` on the CPU: in fp32, or in bf16 if it is `frozen` and there is a GPU.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with boundary(ConfigError, f"loading the model `{name}`"):
        check_hub(name, "config.json")
        dtype = "bfloat16" if frozen and torch.cuda.is_available() else "float32"
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, trust_remote_code=False)


def on_device(model: PreTrainedModel) -> PreTrainedModel:
    """Move `model` to the GPU if there is one, and return it."""
    if torch.cuda.is_available():
        return model.to("cuda")  # pyright: ignore[reportArgumentType]
    if model.num_parameters() < TINY:
        torch.set_num_threads(1)  # a second thread gains nothing on small tensors, and the environment needs the core
    return model


def play_in_process(model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    """See `orl_local.play_in_process`."""
    engine = InProcessEngine(on_device(load_model(model)).eval())
    with LoopThread() as loop:
        return engine.serve(until=loop.submit(play(engine)))


def peak_memory() -> float:
    """Return the most memory, in GiB, that tensors had on the GPU since the last call, or 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak / GIB
