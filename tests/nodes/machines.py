"""Two machines on one: network namespaces that a veth pair joins. Each has an address and a loopback of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field

SECONDS = 120.0  # for anything that is waited for


class Machine(Struct, frozen=True):
    """A network namespace. `hidden` is a folder of the other machine that is an empty one here."""

    namespace: str
    address: str
    hidden: Path | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` there."""
        hide = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self.hidden)]
        mounted = ["unshare", "--mount", *hide] if self.hidden else []
        return ["ip", "netns", "exec", self.namespace, *mounted, *words]

    def start(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process there. It ends with the machine."""
        with log.open("ab") as file:
            self.started.append(subprocess.Popen(self.command(words), env=environment, stdout=file, stderr=file))
        return self.started[-1]

    def run(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
        """Return exit code, output and errors of a process there."""
        command = self.command(words)
        made = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return made.returncode, made.stdout, made.stderr

    def end(self) -> None:
        """End the processes of this machine, which are all ours, and remove it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            ends = time.monotonic() + 5.0
            while (those := self._processes()) and time.monotonic() < ends:
                for process in those:
                    with suppress(ProcessLookupError):  # it has ended
                        os.kill(process, number)
                time.sleep(0.2)
        for process in self.started:
            process.wait(SECONDS)
        ip("netns", "delete", self.namespace)

    def _processes(self) -> list[int]:
        return [int(word) for word in ip("netns", "pids", self.namespace).split()]


@contextmanager
def two_machines(hidden: Path) -> Generator[tuple[Machine, Machine]]:
    """Yield machines at 10.77.0.1 and 10.77.0.2; the second one does not see the folder `hidden`.

    Their names are those of this process. Both are removed at the end, with all that runs there.
    """
    first = Machine(f"orl-a-{os.getpid()}", "10.77.0.1")
    second = Machine(f"orl-b-{os.getpid()}", "10.77.0.2", hidden)
    with ExitStack() as stack:
        for machine in (first, second):
            ip("netns", "add", machine.namespace)
            stack.callback(machine.end)
        ip(
            "link",
            "add",
            "veth0",
            "netns",
            first.namespace,
            *("type", "veth", "peer", "name", "veth0"),
            *("netns", second.namespace),
        )
        for machine in (first, second):
            inside = ("-n", machine.namespace)
            ip(*inside, "address", "add", f"{machine.address}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                ip(*inside, "link", "set", device, "up")
            ip(*inside, "route", "add", "default", "dev", "veth0")  # by which Ray finds the address of its node
        yield first, second


def ip(*words: str) -> str:
    """Run `ip`, and return its output."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=SECONDS).stdout
