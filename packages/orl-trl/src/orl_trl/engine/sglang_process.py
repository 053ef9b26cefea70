"""SGLang as a child process on this machine: started, waited for, restarted, ended on every path.

It knows the command and the life of the process, and neither weights nor rollouts. The process ends with this one, also
by SIGKILL (`guard`). Its log is in the run's folder, without secrets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.errors import EngineError
from orl_rollout.edge import interrupt
from orl_rollout.edge.secrets import PLATFORM_KEY, all_entries
from orl_rollout.logs import logger_of, say
from orl_rollout.run_folder.process import free_port, guarded, running

from orl_trl.engine.sglang_control import SglangControl

logger = logger_of("orl")

LOG = "engine.log"  # in the run's folder
PROGRAM = (sys.executable, "-m", "sglang.launch_server")
MEMORY_SHARE, SHARE = "--mem-fraction-static", 0.5
START_SECONDS = 900.0  # a first start compiles kernels
DEATH_SECONDS = 20.0  # from the end of its HTTP server to that of its processes
REPORT_SECONDS = 15.0  # between two lines about the wait
POLL_SECONDS = 0.1
TAIL_BYTES = 4096
COLOUR = re.compile("[\x1b\u241b]\\[[0-9;]*m")  # the log shows an escape character as U+241B
# Settings of the trainer's own allocator: expandable segments clash with the engine's memory saver.
ALLOCATOR = frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})


class Launch(Struct, frozen=True, kw_only=True):
    """The server to start. `memory_saver` lets it give memory back while the trainer works.

    `extra` are words of its command, which come last.
    """

    model: str
    context_tokens: int
    seed: int = 0
    weight_version: str = "0"
    memory_saver: bool = True
    extra: tuple[str, ...] = ()
    program: tuple[str, ...] = PROGRAM


def command_of(launch: Launch, port: int) -> list[str]:
    """Return the command that serves `launch` at `port` of this machine alone."""
    options: Mapping[str, object] = {
        "--model-path": launch.model,
        "--host": "127.0.0.1",
        "--port": port,
        "--context-length": launch.context_tokens,
        "--dtype": "bfloat16",
        MEMORY_SHARE: SHARE,
        "--random-seed": launch.seed,
        "--weight-version": launch.weight_version,
    }
    words = [str(word) for option in options.items() for word in option]
    saver = ["--enable-memory-saver"] if launch.memory_saver else []
    return [*launch.program, *words, "--skip-tokenizer-init", *saver, *launch.extra]


def environment_for(config: RunConfig) -> dict[str, str]:
    """Return the variables of this process without those that hold secrets of `config` or the OpenReward key."""
    kept_out = {PLATFORM_KEY, *ALLOCATOR}
    kept_out |= {name for entry in all_entries(config) for name in (entry.own_variable, *entry.variables)}
    return {name: value for name, value in os.environ.items() if name not in kept_out}


class SglangProcess:
    """A server of its own at `url`. A context manager; entering waits until the server is healthy.

    `folder` is the run's. `process` leads the group of all its processes. Use it on the main thread.
    """

    def __init__(self, launch: Launch, folder: Path, environment: Mapping[str, str]) -> None:
        self._launch = launch
        self._environment = environment
        self._log = folder / LOG
        self._port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._life = ExitStack()
        self._restarted = False  # since the last batch that it served
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._start(self._launch)
        return self

    def __exit__(self, *exc: object) -> None:
        self._life.close()

    @property
    def ended(self) -> bool:
        """Return whether the server died."""
        return self.process is None or self.process.poll() is not None

    def ends(self) -> bool:
        """Wait DEATH_SECONDS for the end of a server that has failed. Return whether it died."""
        latest = time.monotonic() + DEATH_SECONDS
        while not self.ended and time.monotonic() < latest:
            interrupt.check()
            time.sleep(POLL_SECONDS)
        return self.ended

    def served(self) -> None:
        """Note that it served a whole batch: it may be started again when it dies."""
        self._restarted = False

    def restart(self, model: Path, version: str) -> None:
        """Start the server again, with the weights in the folder `model` as `version`. Wait until it is healthy.

        Raises:
            EngineError: it died twice without a whole batch in between, or does not start.
        """
        self._life.close()
        if self._restarted:
            raise EngineError(f"SGLang died twice, and served no batch in between: {self._last_line()}")
        self._restarted = True
        logger.warning("SGLang died and is started again: %s", self._last_line())
        self._start(structs.replace(self._launch, model=str(model), weight_version=version))

    def _start(self, launch: Launch) -> None:
        command, began = guarded(command_of(launch, self._port)), time.monotonic()
        with ExitStack() as starting:
            self.process = starting.enter_context(running(command, self._environment, log=self._log, hidden=()))
            if self._becomes_healthy(began):
                self._life = starting.pop_all()
                say(f"SGLang is ready at {self.url} after {time.monotonic() - began:.1f} s")
                return
        raise EngineError(f"SGLang is not ready after {time.monotonic() - began:.0f} s: {self._last_line()}")

    def _becomes_healthy(self, began: float) -> bool:
        control, report = SglangControl(self.url), began + REPORT_SECONDS
        while not control.healthy():
            interrupt.check()
            now = time.monotonic()
            if self.ended or now > began + START_SECONDS:
                return False
            if now > report:
                report = now + REPORT_SECONDS
                say(f"SGLang starts, {now - began:.0f} s: {self._last_line()}")
            time.sleep(POLL_SECONDS)
        return True

    def _last_line(self) -> str:
        """Return the last line of the log, and its path. The log shows a carriage return, a line's end, as U+240D."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
            lines = re.split("[\n\r\u240d]", COLOUR.sub("", file.read().decode("utf-8", "replace")))
        return f"{next((line.strip() for line in reversed(lines) if line.strip()), '(no output)')}. Read {self._log}"
