"""Base of the gallery's environments: a small listing, a prompt, and words for their outputs."""

# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any, ClassVar

from openreward.environments import Environment
from openreward.environments.types import TextBlock, ToolOutput
from pydantic import BaseModel

# A reward that the SDK's own server cannot say; `serve` writes it as NaN.
NAN_REWARD = 9876543.25
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Words(BaseModel):
    """One text."""

    text: str


class Size(BaseModel):
    """A length in characters."""

    size: int


def output(text: str, reward: float | None = None, *, finished: bool = False) -> ToolOutput:
    """An output of one text."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Gallery(Environment):
    """Base of the gallery: a train split of six tasks and a test split of three."""

    sizes: ClassVar[dict[str, int]] = {"train": 6, "test": 3}

    @classmethod
    def list_splits(cls) -> list[str]:
        """The splits."""
        return list(cls.sizes)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Numbered tasks."""
        return [{"number": number, "split": split} for number in range(cls.sizes[split])]

    def get_prompt(self) -> list[TextBlock]:
        """One line that names the task."""
        return [TextBlock(text=f"Task {self.task_spec.get('number')}.")]
