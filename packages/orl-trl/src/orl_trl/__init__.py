"""TRL's GRPOTrainer, fed with rollouts through its public `rollout_func`. Nothing of TRL is overridden.

Importing it costs nothing: torch and trl are imported when one of its functions is called. Other modules are internal.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from orl_rollout.run_folder.contract import refuse_conversion

from orl_trl.options import DEFAULTS, reward
from orl_trl.options import resolve as resolve

if TYPE_CHECKING:
    from orl_trl.run import plan, rollout_function, train

__all__ = ["plan", "reward", "rollout_function", "train"]
default_model, defaults, sections = "", DEFAULTS, dict[str, Any]()
conversion_options = packages = ()
convert = plan_conversion = partial(refuse_conversion, "trl")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("orl_trl.run"), name)
