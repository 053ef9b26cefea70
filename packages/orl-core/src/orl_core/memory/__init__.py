"""Memory of a run on its GPUs, estimated from the model's config.json and the sizes of the run, in bytes.

Pure: nothing of torch, transformers or a trainer. Adapters hand in the numbers, and the GPUs that they found.
"""

from orl_core.memory.engine import EngineLoad, engine_memory, rollouts_that_fit, token_bytes
from orl_core.memory.report import Gpu, Lever, MemoryReport, Phase, report_of
from orl_core.memory.shape import ModelShape, shape_of
from orl_core.memory.training import Memory, PerParameter, Recipe, Sharding, training_memory

__all__ = [
    "EngineLoad",
    "Gpu",
    "Lever",
    "Memory",
    "MemoryReport",
    "ModelShape",
    "PerParameter",
    "Phase",
    "Recipe",
    "Sharding",
    "engine_memory",
    "report_of",
    "rollouts_that_fit",
    "shape_of",
    "token_bytes",
    "training_memory",
]
