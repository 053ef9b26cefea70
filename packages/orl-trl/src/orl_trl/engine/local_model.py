"""A model in this process as an engine for whoever plays: no trainer, only the checkpoint, a thread and a loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import torch
import transformers
from orl_core.errors import ConfigError, boundary
from orl_rollout.loop.engine import Engine
from transformers import AutoModelForCausalLM, PreTrainedModel

from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.engine.loop_thread import LoopThread

T = TypeVar("T")

TINY = 10_000_000  # parameters


def load_model(name: str, *, frozen: bool = False) -> PreTrainedModel:
    """Load the causal language model `name` on the GPU where there is one: in fp32, on a GPU in bf16 if it is `frozen`.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with boundary(ConfigError, f"loading the model `{name}`"):
        dtype = "bfloat16" if frozen and torch.cuda.is_available() else "float32"
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, trust_remote_code=False)
    if torch.cuda.is_available():
        return model.to("cuda")  # pyright: ignore[reportArgumentType]
    if model.num_parameters() < TINY:
        torch.set_num_threads(1)  # a second thread gains nothing on small tensors, and the environment needs the core
    return model


def play_in_process(model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    """See `orl_trl.play_in_process`."""
    engine = InProcessEngine(load_model(model).eval())
    with LoopThread() as loop:
        return engine.serve(until=loop.submit(play(engine)))
