"""Environments that work: each has one thing that an agent's host must be able to take."""

# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

from openreward.environments import terminal, tool
from openreward.environments.types import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
)

from orl_testing.environments.base import PIXEL, Gallery, Size, Words, output


class Echo(Gallery):
    """Says what it is told; `finish` ends the episode with reward 1."""

    @tool
    async def echo(self, words: Words) -> ToolOutput:
        """Say the text again."""
        return output(words.text, 0.25)

    @tool
    async def finish(self) -> ToolOutput:
        """End the episode."""
        return output("done", 1.0, finished=True)


class Indented(Gallery):
    """Answers at any length, mostly in spaces, so that every cut of the stream falls into an indentation."""

    @tool
    async def show(self, size: Size) -> ToolOutput:
        """A text of that many characters."""
        return output(f"{'x':>{size.size}}")


class Terminal(Gallery):
    """Takes a plain answer."""

    @tool
    async def look(self) -> ToolOutput:
        """See the task."""
        return output("nothing to see")

    @terminal
    @tool
    async def submit(self, answer: Words) -> ToolOutput:
        """Judge the answer."""
        return output(f"judged: {answer.text}", float(answer.text == "right"), finished=True)


class Picture(Gallery):
    """Answers with an image."""

    @tool
    async def draw(self) -> ToolOutput:
        """Draw a pixel."""
        return ToolOutput(blocks=[TextBlock(text="a pixel"), ImageBlock(data=PIXEL, mimeType="image/png")])


class Conversation(Gallery):
    """Opens in the middle of a conversation."""

    def get_messages(self) -> list[Message]:
        """A system message, a question, a call, its result, and the next question."""
        call = ToolCallBlock(id="c1", name="look", input={"where": "up"})
        return [
            Message(role="system", blocks=[TextBlock(text="Be brief.")]),
            Message(role="user", blocks=[TextBlock(text="What is up?")]),
            Message(role="assistant", blocks=[ReasoningBlock(text="Look."), TextBlock(text="A moment."), call]),
            Message(
                role="user",
                blocks=[
                    ToolResultBlock(tool_call_id="c1", blocks=[TextBlock(text="the sky")]),
                    TextBlock(text="And now?"),
                ],
            ),
        ]

    @tool
    async def look(self, words: Words) -> ToolOutput:
        """Look."""
        return output(words.text)


class Telltale(Gallery):
    """Tells the secrets that it was given, in its results."""

    def __init__(self, task_spec: Any = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self.secrets = secrets or {}

    @tool
    async def tell(self, words: Words) -> ToolOutput:
        """The value of one secret."""
        return output(repr(self.secrets.get(words.text)))
