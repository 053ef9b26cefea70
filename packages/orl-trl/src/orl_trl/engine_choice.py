"""The engine of a run's rollouts, and the reason for it: SGLang beside training, the model itself, or an address.

Pure, but for `this_machine`. It starts nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch
from msgspec import Struct
from orl_core.errors import ConfigError

from orl_trl.local import TINY

INSTALL = "Install it (`just setup-gpu`)"


class Machine(Struct, frozen=True, kw_only=True):
    """The parts of a machine that SGLang needs: a CUDA GPU that torch sees, and the package `sglang`."""

    gpu: bool
    sglang: bool

    def missing(self) -> str:
        """Return what keeps SGLang from running here; "" if nothing does."""
        if not self.gpu:
            return "torch finds no CUDA GPU"
        return "" if self.sglang else "`sglang` is not installed"


class Choice(Struct, frozen=True, kw_only=True):
    """The engine, and why it is that one. `url` is the address of an SGLang that the user serves."""

    engine: Literal["sglang", "transformers", "address"]
    reason: str
    url: str = ""

    def __str__(self) -> str:
        return f"engine: {self.url or self.engine}, because {self.reason}"


def this_machine() -> Machine:
    """Look at this machine and this environment. SGLang is not imported."""
    return Machine(gpu=torch.cuda.is_available(), sglang=find_spec("sglang") is not None)


def choose_engine(wanted: str, parameters: int | None, machine: Machine) -> Choice:
    """Choose the engine for `trainer.trl.engine`, `wanted`. `parameters` are the model's; None where they are unknown.

    `auto` takes SGLang for a model of at least TINY parameters, and for one whose size is unknown. Starting SGLang
    takes about a minute, in which a tiny model makes several steps.

    Raises:
        ConfigError: SGLang is wanted and cannot run here.
    """
    missing = machine.missing()
    if wanted.startswith("http"):
        return Choice(engine="address", reason="trainer.trl.engine is its address", url=wanted.rstrip("/"))
    if wanted == "sglang" and missing:
        advice = INSTALL if machine.gpu else "Train on a machine with one"
        raise ConfigError(f"trainer.trl.engine is sglang, but {missing}. {advice}, or set it to auto")
    if wanted != "auto":
        return Choice(
            engine="sglang" if wanted == "sglang" else "transformers", reason=f"trainer.trl.engine is {wanted}"
        )
    if missing:
        return Choice(engine="transformers", reason=missing)
    if parameters is not None and parameters < TINY:
        size = f"the model has {parameters:,} parameters, and SGLang is for {TINY:,} or more"
        return Choice(engine="transformers", reason=size)
    return Choice(engine="sglang", reason="there are a CUDA GPU, `sglang`, and a model that is not tiny")
