"""What orl asks of an engine that it starts, whichever it is: SGLang or vLLM.

It knows a command and HTTP, and neither models nor rollouts. Rollouts use the client of `orl_rollout`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError, EngineError, EngineRefused, boundary
from orl_rollout.edge.http import HttpClient, read, read_error
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine

JSON = {"Content-Type": "application/json"}
ANSWER_BYTES = 1 << 24
HEALTH_SECONDS = 5.0
CONTROL_SECONDS = 600.0  # for an update of large weights from a slow disk
SHARE, OWN_SHARE = 0.5, 0.85  # of a GPU that also trains, and of one that does not
_REFUSED = frozenset({400, 404, 405})  # the request itself, or its path: an older server


class Launch(Struct, frozen=True, kw_only=True):
    """The server to start, on `gpus` GPUs from `gpu` on, with a `share` of each.

    `memory_saver` lets it give memory back meanwhile. `tokenizer` is the checkpoint of it, if `model` has none. `extra`
    are words of its command, which come last. `program` replaces that of its kind.
    """

    control: type[Control]
    model: str
    tokenizer: str = ""
    context_tokens: int
    seed: int = 0
    weight_version: str = "0"
    memory_saver: bool = True
    gpu: int = 0
    gpus: int = 1
    share: float = SHARE
    extra: tuple[str, ...] = ()
    program: tuple[str, ...] = ()


class _Rank(Struct):
    checksums: dict[str, str]


class Answer(Struct):
    """What orl reads of answers: whether the server obeyed, and checksums by GPU: `ranks` of SGLang, else `results`."""

    success: bool = True
    message: str = ""
    ranks: tuple[_Rank, ...] = ()
    results: tuple[dict[str, str] | None, ...] = ()

    def checksums(self) -> dict[str, str]:
        """Return the checksum of each tensor, those of all GPUs as one text."""
        joined: dict[str, str] = {}
        for one in (*(rank.checksums for rank in self.ranks), *filter(None, self.results)):
            joined |= {name: joined.get(name, "") + text for name, text in one.items()}
        return joined


class Control(ABC):
    """Ask one server, on `gpus` GPUs. Inside `async with` one client stays open.

    Every method but `healthy` raises EngineError if the server refuses or does not answer. A kind of engine has a NAME,
    the CLIENT of its rollouts, the option that sets its share of a GPU, and options that orl sets (OWNED).
    """

    NAME: ClassVar[str]
    CLIENT: ClassVar[type[SglangEngine | VllmEngine]]
    PROGRAM: ClassVar[tuple[str, ...]]
    SHARE_OPTION: ClassVar[str]
    OWNED: ClassVar[frozenset[str]]

    def __init__(self, url: str, gpus: int = 1) -> None:
        self.url, self._gpus = url.rstrip("/"), gpus
        self._http: HttpClient | None = None

    async def __aenter__(self) -> Self:
        self._http = HttpClient(self.url)
        return self

    async def __aexit__(self, *exc: object) -> None:
        http, self._http = self._http, None
        if http:
            await http.close()

    @staticmethod
    @abstractmethod
    def address(folder: Path) -> str:
        """Return a free address. `folder` is new, and of this user alone."""

    @staticmethod
    @abstractmethod
    def options(launch: Launch, url: str) -> list[str]:
        """Return the options that serve `launch` at `url`, for this machine alone."""

    @staticmethod
    def variables(url: str) -> dict[str, str]:
        """Return what the environment of a server at `url` needs."""
        del url
        return {}

    async def healthy(self) -> bool:
        """Return whether the server answers and is ready."""
        with suppress(EngineError):
            await self._ask("GET", "/health", b"", HEALTH_SECONDS)
            return True
        return False

    async def begin(self, version: str) -> None:
        """Name the weights that the server started with, if its command does not."""
        del version

    async def prepare(self) -> None:
        """Let the server expect buckets of weights, if it does not always."""
        return

    @abstractmethod
    async def update_from_tensors(self, bucket: str, version: str) -> None:
        """Load one bucket of weights, as `orl_local.engine.weights` made it."""

    async def finish(self, version: str) -> None:
        """Let the server compute with the buckets, as `version`, if it does not yet."""
        del version

    @abstractmethod
    async def update_from_disk(self, folder: str, version: str) -> None:
        """Load the weights in `folder`, safetensors with Hugging Face's names, as the version `version`."""

    @abstractmethod
    async def flush_cache(self) -> None:
        """Empty the prefix cache, whose keys and values are those of older weights, once no request runs."""

    @abstractmethod
    async def release(self) -> None:
        """Abort what runs, and give the memory of weights and cache back. What was in it is lost."""

    @abstractmethod
    async def wake(self) -> None:
        """Take the memory of weights again."""

    @abstractmethod
    async def serve(self, *, woken: bool) -> None:
        """Take requests after a sync, with the memory of the cache if the server was `woken`."""

    @abstractmethod
    async def checksums(self) -> dict[str, str]:
        """Return checksums of each tensor that the server computes with, by its own names, of all its GPUs as one text.

        Empty if the server has no such request.
        """

    async def _post(self, path: str, body: object = None) -> Answer:
        text = await self._ask("POST", path, msgspec.json.encode(body or {}))
        with boundary(EngineAnswerError, f"{self.NAME}: POST {path}"):
            answer = msgspec.json.decode(text, type=Answer) if text.startswith(b"{") else Answer()
        if not answer.success:
            raise EngineError(f"{self.NAME}: POST {path}: {answer.message or 'refused'}")
        return answer

    async def _ask(self, method: str, path: str, body: bytes, seconds: float = CONTROL_SECONDS) -> bytes:
        if self._http is None:
            async with self:
                return await self._ask(method, path, body, seconds)
        sent: dict[str, Any] = {"data": body, "timeout": aiohttp.ClientTimeout(total=seconds)}
        with boundary(EngineError, f"{self.NAME}: {method} {path}"):
            async with self._http.request(method, path, headers=JSON, **sent) as answer:
                if answer.status != 200:
                    text = (await read_error(answer)).decode("utf-8", "replace")
                    error = EngineRefused if answer.status in _REFUSED else EngineError
                    raise error(f"{self.NAME}: {method} {path}: HTTP {answer.status}: {text}")
                return await read(answer, ANSWER_BYTES)
