"""An agent that is a program. It leads a process group, and the group ends with the episode.

A process that it started in another session ends too: all have a variable that no other episode has.

It gets the variables that the configuration names, a few like PATH, and no secret that it does not need.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from orl_core.config import AgentConfig
from orl_core.config.agent import MARK
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.edge import children, interrupt

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
)
END_SECONDS = 2.0  # in which the group may end on SIGTERM
READ_BYTES = 1 << 16


async def run_command(agent: AgentConfig, variables: Mapping[str, str], printed: bytearray) -> None:
    """Run the program to its end with `variables`, and end all that it started. A cancellation ends it too.

    `printed` gets what it prints, the last `max_output` bytes.
    """
    environment = {**environment_of(agent, variables), MARK: secrets.token_hex(16)}
    own = tempfile.mkdtemp(prefix="orl-agent-")
    try:
        async with _reading(agent.max_output, printed) as output:
            with boundary(OrlError, f"starting {agent.command[0]}"):
                process = await _start(agent, environment, own, output)
            output.close()
            try:
                with interrupt.released(lambda: _kill(process, environment)):
                    code = await process.wait()
            finally:
                await _end(process, environment)
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, own, ignore_errors=True))  # it may hold many files
    if code:
        raise OrlError(f"{agent.command[0]} ended with code {code}")


async def _start(
    agent: AgentConfig, environment: Mapping[str, str], own: str, output: IO[bytes]
) -> asyncio.subprocess.Process:
    """Start the program in its folder. If a cancellation comes meanwhile, end the group: asyncio ends no children.

    asyncio gets no pipe of it: a process would end for asyncio when nobody holds its pipe any more.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *agent.command,
            env=environment,
            cwd=Path(agent.folder) if agent.folder else own,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(await starting, environment)
        raise


def check_command(agent: AgentConfig) -> None:
    """Refuse a command that cannot be started here."""
    environment, program = environment_of(agent, {}), agent.command[0]
    folder = Path(agent.folder) if agent.folder else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"`agent.folder`: {folder} is no folder. Make it, or name another one")
    file = program if os.sep not in program else str((folder or Path(os.devnull)) / program)  # a new folder is empty
    if not shutil.which(file, path=environment.get("PATH")):
        where = f"in {folder}" if folder else "on PATH. Give its whole path, or set `agent.folder`"
        raise ConfigError(f"`agent.command`: {program} is no program {where}")


def environment_of(agent: AgentConfig, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the program. `variables` win over the configuration."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    for name, value in agent.env.items():
        if value is None and name not in os.environ:
            raise ConfigError(f"`agent.env.{name}` is null, and the variable is not set. Set it")
        environment[name] = os.environ[name] if value is None else value
    return {**environment, **variables}


@asynccontextmanager
async def _reading(most: int, printed: bytearray) -> AsyncGenerator[IO[bytes]]:
    """Yield the writing end of a pipe. Its last `most` bytes are kept in `printed`, also those after the block."""
    stream = asyncio.StreamReader()
    out, into = os.pipe()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(out, "rb", 0)
    )

    async def read() -> None:
        while part := await stream.read(READ_BYTES):
            printed.extend(part)
            del printed[:-most]

    reading = asyncio.ensure_future(read())
    try:
        with os.fdopen(into, "wb", 0) as output:
            yield output
    finally:
        try:
            await asyncio.wait((reading,), timeout=END_SECONDS)
        finally:
            reading.cancel()
            pipe.close()


async def _end(process: asyncio.subprocess.Process, environment: Mapping[str, str]) -> None:
    """End the process group and all that the program left behind: SIGTERM, then SIGKILL."""
    if process.returncode is None:
        children.send(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
    await asyncio.to_thread(_kill, process, environment)
    await process.wait()


def _kill(process: asyncio.subprocess.Process, environment: Mapping[str, str]) -> None:
    children.send(process.pid, signal.SIGKILL)
    children.kill_marked(f"{MARK}={environment[MARK]}")
