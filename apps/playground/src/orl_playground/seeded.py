"""An environment whose tasks are seeds. It must not know the episode that a subclass makes of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openreward.environments import Environment, Split, TextBlock, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openreward.environments import JSONObject

SEEDS = {"train": range(512), "test": range(1_000_000, 1_000_256)}


class SeededEnvironment(Environment):
    """An episode made from `seed`. It is not served: the SDK would share its tasks with its subclasses."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        seed = self.task_spec["seed"]
        if not isinstance(seed, int):
            raise TypeError(f"a task of {type(self).__name__} is a whole-number seed, not {seed!r}")
        self.seed = seed

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        """Return `train` and `test`, made from seeds that are far apart."""
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Return one task for each seed of a split, always in the same order. Raises ValueError for another split."""
        if split not in SEEDS:
            raise ValueError(f"no split named {split!r}: {', '.join(SEEDS)}")
        return [{"seed": seed} for seed in SEEDS[split]]


def told(text: str) -> ToolOutput:
    """Return the output of a tool that informs and pays nothing."""
    return ToolOutput(blocks=[TextBlock(text=text)])
