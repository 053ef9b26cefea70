"""An engine as a child process on this machine: started, waited for, restarted, ended on every path.

It knows the command and the life of the process, and neither weights nor rollouts. The process ends with this one, also
by SIGKILL (`guard`). Its log is in the run's folder, without secrets. A start takes a minute: imports, CUDA graphs and,
once for each host, kernels to compile. So the byte code is kept, and one line shows what it does.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import EngineError
from orl_rollout.edge.children import guarded, programs, running
from orl_rollout.edge.files import cache_folder
from orl_rollout.edge.http import UNIX
from orl_rollout.edge.secrets import PLATFORM_KEY, all_entries
from orl_rollout.logs import logger_of, say, working

from orl_local.engine.control import Launch

logger = logger_of("orl")

LOG = "engine.log"  # in the run's folder
START_SECONDS = 900.0  # a first start compiles kernels
DEATH_SECONDS = 20.0  # from the end of its HTTP server to that of its processes
POLL_SECONDS = 0.1
TAIL_BYTES = 4096
COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cudafe++"})
NO_BYTE_CODE, BYTE_CODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
COLOUR = re.compile("[\x1b\u241b]\\[[0-9;]*m")  # the log shows an escape character as U+241B
# Settings that clash with the engine's memory saver: expandable segments are the trainer's own, and a release of CUDA
# graphs must unmap nothing (`served_engine`).
CLASHING = frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "SGLANG_MEMORY_SAVER_CUDA_GRAPH"})


def command_of(launch: Launch, url: str) -> list[str]:
    """Return the command that serves `launch` at `url`."""
    return [*(launch.program or launch.control.PROGRAM), *launch.control.options(launch, url), *launch.extra]


def environment_for(config: RunConfig) -> dict[str, str]:
    """Return the variables of this process without those that hold secrets of `config` or the OpenReward key.

    Its processes keep byte code in orl's cache, also if this one does not. Without it each of them compiles its
    modules for 20 s at every start.
    """
    kept_out = {PLATFORM_KEY, NO_BYTE_CODE, *CLASHING}
    kept_out |= {name for entry in all_entries(config) for name in (entry.own_variable, *entry.variables)}
    environment = {name: value for name, value in os.environ.items() if name not in kept_out}
    return {BYTE_CODE: str(cache_folder().absolute() / "bytecode"), **environment}


class EngineProcess:
    """A server of its own at `url`. A context manager; entering starts the server, and `wait` waits until it is ready.

    `folder` is the run's. `process` leads the group of all its processes.
    """

    def __init__(self, launch: Launch, folder: Path, environment: Mapping[str, str]) -> None:
        self._launch, self._name = launch, launch.control.NAME
        self._environment = environment
        self._log = folder / (f"engine-{launch.gpu}.log" if launch.gpu else LOG)
        self._life, self._home = ExitStack(), ExitStack()
        self._restarted = False  # since the last batch that it served

    def __enter__(self) -> Self:
        private = self._home.enter_context(TemporaryDirectory(prefix="orl-"))  # which this user alone can enter
        self.url = self._launch.control.address(Path(private))
        # A socket gets its name once the weights have theirs, so that no rollout comes before.
        self._at = f"{self.url}-new" if self.url.startswith(UNIX) else self.url
        self._start(self._launch)
        return self

    def __exit__(self, *exc: object) -> None:
        self._life.close()
        self._home.close()

    @property
    def ended(self) -> bool:
        """Return whether the server died."""
        return self.process.poll() is not None

    async def ends(self) -> bool:
        """Wait DEATH_SECONDS for the end of a server that has failed. Return whether it died."""
        latest = time.monotonic() + DEATH_SECONDS
        while not self.ended and time.monotonic() < latest:  # noqa: ASYNC110 - nobody tells of the end
            await asyncio.sleep(POLL_SECONDS)
        return self.ended

    def served(self) -> None:
        """Note that it served a whole batch: it may be started again when it dies."""
        self._restarted = False

    async def restart(self, model: Path, version: str) -> None:
        """Start the server again, with the weights in the folder `model` as `version`. Wait until it is ready.

        Raises:
            EngineError: it died twice without a whole batch in between, or does not start.
        """
        self._life.close()
        if self._restarted:
            raise EngineError(f"{self._name} died twice, and served no batch in between: {self._last_line()}")
        self._restarted = True
        logger.warning("%s died and is started again: %s", self._name, self._last_line())
        tokenizer = self._launch.tokenizer or self._launch.model  # the folder has none
        self._start(structs.replace(self._launch, model=str(model), tokenizer=tokenizer, weight_version=version))
        await self.wait()

    async def wait(self) -> None:
        """Wait until the server is ready.

        Raises:
            EngineError: it died, or needs more than START_SECONDS.
        """
        control = self._launch.control(self._at)
        with working(lambda: f"{self._name} starts: {self._stage()}, {time.monotonic() - self._began:.0f} s"):
            while not await control.healthy():
                seconds = time.monotonic() - self._began
                if self.ended or seconds > START_SECONDS:
                    fault = "died" if self.ended else "is not ready"
                    self._life.close()  # then the log is complete
                    raise EngineError(f"{self._name} {fault} {seconds:.0f} s after its start: {self._last_line()}")
                await asyncio.sleep(POLL_SECONDS)
        await control.begin(self._version)
        self._show()
        say(f"{self._name} is ready at {self.url}, {time.monotonic() - self._began:.1f} s after its start")

    def _show(self) -> None:
        if self._at != self.url:
            Path(self._at.removeprefix(UNIX)).replace(self.url.removeprefix(UNIX))

    def _start(self, launch: Launch) -> None:
        command, self._began = guarded(command_of(launch, self._at)), time.monotonic()
        self._version = launch.weight_version
        environment = {**self._environment, **launch.control.variables(self._at)}
        self.process = self._life.enter_context(running(command, environment, log=self._log, hidden=()))

    def _stage(self) -> str:
        """Return what the starting server does: its log has no line about imports and compilers."""
        if programs(self.process.pid) & COMPILERS:
            return "compiles kernels (once for this host)"
        line = (self._lines() or ["server_args="])[-1]
        if "server_args=" in line:
            return "imports"
        return "captures CUDA graphs" if re.search("[Cc]aptur", line) else line

    def _lines(self) -> list[str]:
        """Return the last lines of the log. It shows a carriage return, a line's end, as U+240D."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
            lines = re.split("[\n\r\u240d]", COLOUR.sub("", file.read().decode("utf-8", "replace")))
        return [line.strip() for line in lines if line.strip()]

    def _last_line(self) -> str:
        """Return the last line of the log, and its path."""
        return f"{(self._lines() or ['(no output)'])[-1]}. Read {self._log}"
