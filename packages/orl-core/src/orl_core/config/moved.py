"""Keys that `trainer` had before its adapters had sections, or in another section, and the place of each now.

No other module of orl_core knows an option of an adapter.
"""

from __future__ import annotations

_CLUSTER = (
    *("async", "num_gpus", "actor_gpus", "rollout_gpus", "actor_nodes", "tp", "train_backend", "save"),
    *("megatron_ckpt", "model_args", "memory_retries", "stall_timeout", "megatron_path"),
)
MOVED = {
    **{f"$.trainer.{name}": f"trainer.cluster.{name}" for name in _CLUSTER},
    **{f"$.trainer.{old}": f"trainer.local.{old[4:]}" for old in ("trl.engine", "trl.lora_rank", "trl.optimizer")},
    "$.trainer.slime_path": "trainer.slime.path",
    "$.trainer.miles_path": "trainer.miles.path",
}


def line_for(key: str) -> str:
    """Return what is wrong with a `key` that moved; "" if it did not."""
    return f"`{key}` is `{MOVED[key]}` now: move it there" if key in MOVED else ""
