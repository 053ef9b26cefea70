"""A gallery of OpenReward environments, each with one habit that an agent's host must bear, and a server for them.

Real ones, on the SDK's own server, on loopback: what is tested against them is the protocol, not a fake of it. Import
this module only to serve: it brings the whole SDK.
"""

# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

os.environ.setdefault("OPENREWARD_LOG_LEVEL", "ERROR")
os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

import uvicorn
from openreward.environments import Environment, Server, terminal, tool
from openreward.environments.types import (
    GroupCandidate,
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
)
from pydantic import BaseModel

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

NAN_REWARD = 9876543.25  # stands for a NaN, which the SDK's own server cannot say: `serve` writes it as one
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Words(BaseModel):
    """One text."""

    text: str


class Size(BaseModel):
    """A length in characters."""

    size: int


def said(text: str, reward: float | None = None, *, finished: bool = False) -> ToolOutput:
    """An output of one text."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class _Gallery(Environment):
    """What the gallery has in common: a train split of six tasks and a test split of three."""

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


class Echo(_Gallery):
    """Says what it is told; `finish` ends the episode with reward 1."""

    @tool
    async def echo(self, words: Words) -> ToolOutput:
        """Say the text again."""
        return said(words.text, 0.25)

    @tool
    async def finish(self) -> ToolOutput:
        """End the episode."""
        return said("done", 1.0, finished=True)


class Indented(_Gallery):
    """Answers at any length, mostly in spaces, so that every cut of the stream falls into an indentation."""

    @tool
    async def show(self, size: Size) -> ToolOutput:
        """A text of that many characters."""
        return said(f"{'x':>{size.size}}")


class Failing(_Gallery):
    """Its tool raises."""

    @tool
    async def fail(self) -> ToolOutput:
        """Raise."""
        raise RuntimeError("the disk\nis on fire")


class FailingSetup(_Gallery):
    """Never starts."""

    async def setup(self) -> None:
        """Raise."""
        raise RuntimeError("no image")

    @tool
    async def act(self) -> ToolOutput:
        """Unreachable."""
        return said("")


class FlakySetup(_Gallery):
    """Starts at the second try of every task."""

    tried: ClassVar[set[int]] = set()

    async def setup(self) -> None:
        """Raise once for each task."""
        number = cast("int", self.task_spec["number"])
        if number not in self.tried:
            self.tried.add(number)
            raise RuntimeError("no node yet")

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return said("up", 1.0, finished=True)


class SlowSetup(_Gallery):
    """Is not up within any deadline."""

    async def setup(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    @tool
    async def act(self) -> ToolOutput:
        """Unreachable."""
        return said("")


class Hanging(_Gallery):
    """Its tool does not answer as long as the session lives; `started` counts how often it was run."""

    started: ClassVar[list[str]] = []

    def __init__(self, task_spec: Any = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self.gone = asyncio.Event()

    async def teardown(self) -> None:
        """Let the tool go."""
        self.gone.set()

    @tool
    async def wait(self) -> ToolOutput:
        """Wait for the end."""
        self.started.append("wait")
        await self.gone.wait()
        return said("")


class HangingTeardown(_Gallery):
    """Cannot be torn down in time."""

    async def teardown(self) -> None:
        """Take long."""
        await asyncio.sleep(3)

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return said("ok")


class Terminal(_Gallery):
    """Takes a plain answer."""

    @tool
    async def look(self) -> ToolOutput:
        """See the task."""
        return said("nothing to see")

    @terminal
    @tool
    async def submit(self, answer: Words) -> ToolOutput:
        """Judge the answer."""
        return said(f"judged: {answer.text}", float(answer.text == "right"), finished=True)


class Picture(_Gallery):
    """Answers with an image."""

    @tool
    async def draw(self) -> ToolOutput:
        """Draw a pixel."""
        return ToolOutput(blocks=[TextBlock(text="a pixel"), ImageBlock(data=PIXEL, mimeType="image/png")])


class NanReward(_Gallery):
    """Pays a reward that is not a number."""

    @tool
    async def pay(self) -> ToolOutput:
        """Pay."""
        return said("paid", NAN_REWARD)


class Conversation(_Gallery):
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
        return said(words.text)


class Telltale(_Gallery):
    """Tells the secrets that it was given, in its results and in its errors."""

    def __init__(self, task_spec: Any = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self.secrets = secrets or {}

    @tool
    async def tell(self, words: Words) -> ToolOutput:
        """The value of one secret."""
        return said(repr(self.secrets.get(words.text)))

    @tool
    async def fail(self, words: Words) -> ToolOutput:
        """Raise with the value of one secret."""
        raise RuntimeError(f"key {self.secrets.get(words.text)} refused")


class Duplicates(_Gallery):
    """Lists every task twice."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Four tasks, listed twice."""
        return [{"number": number % 4} for number in range(8)]

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return said("ok")


class Endless(_Gallery):
    """Has more tasks than anyone would list: they are made by index."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Refuse."""
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        """Many."""
        return 5_000

    @classmethod
    async def get_task(cls, split: str, index: int) -> dict[str, Any]:
        """The task at `index`."""
        return {"number": index}

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return said("ok")


class Compared(_Gallery):
    """Compares conversations: the longer one's last words are better. `seen` holds what it was shown."""

    seen: ClassVar[list[list[GroupCandidate]]] = []

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[float]:
        """The length of each conversation's last text, or what the task asks for instead."""
        self.seen.append(list(candidates))
        if self.task_spec["number"] == 2:
            raise RuntimeError("the judge is asleep")
        if self.task_spec["number"] == 3:
            await asyncio.sleep(5)
        return [float(len(_last_words(candidate))) for candidate in candidates]

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return said("ok", 1.0, finished=True)


def _last_words(candidate: GroupCandidate) -> str:
    texts = [block.text for message in candidate.messages for block in message.blocks if block.type == "text"]
    return texts[-1]


GALLERY: tuple[type[Environment], ...] = (
    Echo,
    Indented,
    Failing,
    FailingSetup,
    FlakySetup,
    SlowSetup,
    Hanging,
    HangingTeardown,
    Terminal,
    Picture,
    NanReward,
    Conversation,
    Telltale,
    Duplicates,
    Endless,
    Compared,
)


class Served:
    """A running server. `requests` are (path, headers) of all that it was asked, names of headers in lower case."""

    def __init__(self, url: str, server: Server, requests: list[tuple[str, dict[str, str]]]) -> None:
        self.url = url
        self.requests = requests
        self._server = server

    @property
    def sessions(self) -> int:
        """How many environments are alive on the server."""
        return len(self._server._active_envs)  # pyright: ignore[reportPrivateUsage]

    def asked(self, path: str) -> int:
        """How many requests had a path that ends in `path`."""
        return sum(asked.endswith(path) for asked, _ in self.requests)


@contextmanager
def serve(*environments: type[Environment], wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app) -> Generator[Served]:
    """Serve `environments` (all of the gallery by default) on a free loopback port, on a thread.

    `wrap` puts a fault between the server and the wire.
    """
    server = Server(list(environments or GALLERY))
    requests: list[tuple[str, dict[str, str]]] = []
    app = _Loose(wrap(server.app), requests)
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", ws="none", timeout_graceful_shutdown=1, lifespan="on"
    )
    process = uvicorn.Server(config)
    serving = asyncio.run_coroutine_threadsafe(process.serve(), _loop())
    try:
        deadline = time.monotonic() + 20
        while not process.started:
            if serving.done() or time.monotonic() > deadline:
                raise RuntimeError("the server of environments does not start")
            time.sleep(0.005)
        port = process.servers[0].sockets[0].getsockname()[1]
        yield Served(f"http://127.0.0.1:{port}", server, requests)
    finally:
        process.should_exit = True
        serving.result(10)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all servers of this process: the SDK's server keeps state that only one loop may touch."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="orl-environments", daemon=True).start()
    return loop


class _Loose:
    """Notes requests, and writes NAN_REWARD as NaN, as servers in looser languages do."""

    def __init__(self, app: ASGIApp, requests: list[tuple[str, dict[str, str]]]) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._requests.append((scope["path"], headers))

        async def loosely(message: Any) -> None:
            if message["type"] == "http.response.body" and b"9876543.25" in message.get("body", b""):
                message = {**message, "body": message["body"].replace(b"9876543.25", b"NaN")}
            await send(message)

        await self._app(scope, receive, loosely)
