"""Environments of other kinds than a game: files that need a secret, and questions with several splits."""

# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any, ClassVar

from openreward.environments import Environment, terminal, tool
from openreward.environments.types import TextBlock, ToolOutput
from orl_testing.environments.base import Gallery, Words, output
from pydantic import BaseModel


class File(BaseModel):
    """A file and what to write into it."""

    path: str
    text: str = ""


class Files(Gallery):
    """A folder of files, read and written by tools. It opens with the secret `openai_api_key` alone."""

    def __init__(self, task_spec: Any = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        if not (secrets or {}).get("openai_api_key"):
            raise ValueError("this environment needs the secret openai_api_key")
        self.files = {"README.md": "Write 'done' into out.txt, then submit."}

    @tool
    async def read(self, file: File) -> ToolOutput:
        """Show a file."""
        return output(self.files.get(file.path, "no such file"), 0.0)

    @tool
    async def write(self, file: File) -> ToolOutput:
        """Write a file."""
        self.files[file.path] = file.text
        return output("written", 0.25)

    @tool
    async def submit(self) -> ToolOutput:
        """Have the folder judged."""
        return output("judged", float(self.files.get("out.txt") == "done"), finished=True)


class Exam(Environment):
    """Questions of four splits without a tool: the first plain answer ends the episode."""

    sizes: ClassVar[dict[str, int]] = {"easy": 6, "hard": 6, "empty": 0, "validation": 3}

    @classmethod
    def list_splits(cls) -> list[str]:
        """The splits."""
        return list(cls.sizes)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """A long text with a number to find."""
        return [{"number": number, "split": split} for number in range(cls.sizes[split])]

    def get_prompt(self) -> list[TextBlock]:
        """The text."""
        return [TextBlock(text="How many words has this text?\n" + "word " * 300)]

    @terminal
    @tool
    async def answer(self, words: Words) -> ToolOutput:
        """Judge the answer."""
        return output("judged", float("300" in words.text), finished=True)
