"""Keys that `trainer` had before its adapters had sections, and the place of each now.

No other module of orl_core knows an option of an adapter.
"""

from __future__ import annotations

_CLUSTER = (
    *("async", "num_gpus", "actor_gpus", "rollout_gpus", "actor_nodes", "tp", "train_backend", "save"),
    *("megatron_ckpt", "model_args", "memory_retries", "stall_timeout", "megatron_path"),
)
MOVED = {
    **{f"$.trainer.{name}": f"trainer.cluster.{name}" for name in _CLUSTER},
    **{f"$.trainer.{name}": f"trainer.trl.{name}" for name in ("engine", "lora_rank", "optimizer")},
    "$.trainer.slime_path": "trainer.slime.path",
    "$.trainer.miles_path": "trainer.miles.path",
}
