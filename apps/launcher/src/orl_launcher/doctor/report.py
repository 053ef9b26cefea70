"""What a check-up finds, printed line by line as it is found: verdict, subject, and what to do.

It knows no check. Whatever is printed passes the scrubber and `visible`: a secret's value is never shown (law L6), and
no text from outside steers the terminal. Every check is bounded in time; one that fails keeps no other from running.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from orl_core.errors import OrlError, boundary
from orl_core.text import visible
from orl_rollout.secrets.secrets import Scrubber
from orl_rollout.signals import interrupt

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


class Verdict(StrEnum):
    """What came of a check. FAILED alone makes the whole fail."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNCHECKED = "not checked"


STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red", Verdict.UNCHECKED: "dim"}


class Page:
    """One page of findings. `seconds` is the bound of each check, `scrubber` knows the secrets once they are known."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._counts = Counter[Verdict]()
        self.seconds = seconds
        self.scrubber = Scrubber(())

    def group(self, name: str) -> None:
        """Begin a group of findings."""
        self._console.print(name, style="bold", markup=False)

    def say(self, verdict: Verdict, text: str) -> None:
        """Print one finding, in one line."""
        from rich.text import Text

        self._counts[verdict] += 1
        words = visible(" ".join(self.scrubber.scrub(text).split()))
        self._console.print(Text.assemble((f"  {verdict:<11}  ", STYLES[verdict]), words), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print what a reader should know and nothing has to be done about; it may have several lines."""
        from rich.text import Text

        for line in visible(self.scrubber.scrub(text)).split("\n"):
            self._console.print(Text(f"{'':15}{line}", style="dim"), soft_wrap=True)

    def conclude(self) -> bool:
        """Print how many findings there are of each kind; whether nothing failed."""
        told = ", ".join(f"{self._counts[verdict]} {verdict}" for verdict in Verdict if self._counts[verdict])
        self._console.print(told, style="bold", markup=False)
        return not self._counts[Verdict.FAILED]

    def attempt(self, subject: str, work: Callable[[], T], *, advice: str = "") -> T | None:
        """The result of `work` on a thread; None where it fails or takes too long, which is said with `advice`.

        The thread of what takes too long is left behind: code that is not ours cannot be ended, and must not hold the
        command.
        """
        return self._tried(subject, lambda: _on_thread(work, self.seconds), advice)

    def await_(self, subject: str, work: Callable[[], Awaitable[T]], *, advice: str = "") -> T | None:
        """The result of `work` on an event loop, as `attempt`; what takes too long is cancelled and cleans up."""
        return self._tried(subject, lambda: interrupt.run(_in_time(work, self.seconds)), advice)

    def _tried(self, subject: str, work: Callable[[], T], advice: str) -> T | None:
        try:
            with boundary(OrlError, "a bug in orl"):
                return work()
        except OrlError as exc:
            self.say(Verdict.FAILED, f"{subject}: {exc}{f'; {advice}' if advice else ''}")
        return None


def _overdue(seconds: float) -> OrlError:
    return OrlError(f"no end within {seconds:g} s; --timeout waits longer")


async def _in_time(work: Callable[[], Awaitable[T]], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work()
    except TimeoutError as exc:
        raise _overdue(seconds) from exc


def _on_thread(work: Callable[[], T], seconds: float) -> T:
    try:
        return interrupt.result_of(interrupt.on_thread(work), seconds)
    except TimeoutError as exc:
        raise _overdue(seconds) from exc
